#!/usr/bin/env python3
"""Writes template_cases.jsonl: small templates with what Python's jinja2 makes of them.

    python3 -m venv v && v/bin/pip install jinja2==3.1.6 && v/bin/python make_template_cases.py > template_cases.jsonl

The environment is set up the way the transformers library sets up chat templates: immutable sandbox, trim_blocks,
lstrip_blocks, loop controls, a generation tag, tojson through json.dumps, raise_exception, strftime_now (fixed clock).
The first line is {"input": ...}, used for all cases.  A case is {"t": template, "x": text} or {"t", "e": error class,
"m": message}."""
import datetime
import json
import sys

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime.datetime(2026, 1, 15, 9, 30, 0)


class Raised(Exception):
    pass


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_gen"), [], [], body).set_lineno(lineno)

    def _gen(self, caller):
        return caller()


def raise_exception(message):
    raise Raised(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class ChatNamespace(jinja2.utils.Namespace):
    """A namespace that refuses names with a leading underscore, as transformers' does."""

    def __init__(*args, **kwargs):
        self, args = args[0], args[1:]
        attrs = dict(*args, **kwargs)
        for name in attrs:
            check_name(name)
        jinja2.utils.Namespace.__init__(self, attrs)

    def __setitem__(self, name, value):
        check_name(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    def __repr__(self):
        return jinja2.utils.Namespace.__repr__(self)


def check_name(name):
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(
            f"Chat templates cannot store underscore-prefixed attributes on a namespace, but got {name!r}. "
            "Please rename the attribute."
        )


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation])
    env.filters["tojson"] = tojson
    env.globals["namespace"] = ChatNamespace
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: NOW.strftime(f)
    return env


def error_class(e):
    if isinstance(e, Raised):
        return "raise"
    if isinstance(e, (jinja2.TemplateSyntaxError, SyntaxError)):
        return "syntax"
    if isinstance(e, jinja2.UndefinedError):
        return "undefined"
    if isinstance(e, jinja2.exceptions.SecurityError):
        return "sandbox"
    if isinstance(e, RecursionError):
        return "recursion"
    if isinstance(e, (jinja2.TemplateRuntimeError, RuntimeError)):
        return "runtime"
    if isinstance(e, (TypeError, AttributeError)):
        return "type"
    return "value"


def run(env, template, data):
    try:
        return {"x": env.from_string(template).render(**data)}
    except Exception as e:  # every kind is a result here
        m = str(e)
        return {"e": error_class(e), "m": m[: m.index(" (<template>")] if " (<template>" in m else m}


IN = {
    "s": " Ab c ", "t": "héllo wörld", "e": "", "n": 7, "f": 2.5, "z": 0, "b": True, "no": None,
    "l": [3, 1, 2], "ls": ["b", "A", "c"], "d": {"b": 1, "a": [2, {"k": "v"}]},
    "ms": [{"role": "system", "content": "S"}, {"role": "user", "content": " hi "}, {"role": "assistant", "content": "yo"}],
}

EXPR = r"""
1 + 2 * 3 - 4 | 7 // 2 | -7 // 2 | 7 % -3 | -7 % 3 | 7.5 // 2 | -7.5 % 2 | 2 ** 10 | 2 ** -1 | 2 ** 0.5 | 1 / 3 | 6 / 3
1e3 | 1e16 | 1e15 | 1.5e-5 | 0.0001 | 123456789.125 | 1e22 | 3.0 * 2 | 1_000 | 0x1F | 0b101 | 0o17 | 100000000000 * 1000000000000
1 == 1.0 | true == 1 | 'a' == 'a' | [1] == [1] | {'a': 1} == {'a': 1} | (1,) == [1] | none == none | 1 != 2 | 1 < 2 < 3 | 3 > 2 > 2
'a' < 'b' | [1, 2] < [1, 3] | 'a' in 'cat' | 'x' not in 'cat' | 1 in l | 'b' in d | 2 in (1, 2) | 'k' not in d
1 and 0 | 0 or 'x' | not 1 | not '' | 1 if n > 3 else 2 | 'y' if false | none or false | '' or 0 or [] | [] and 1
'a' ~ 1 ~ none ~ 2.0 ~ [1] | 'a' + 'b' 'c' | [1] + [2] | (1,) + (2,) | 'ab' * 3 | [0] * 3 | 2 * 'x' | 'x' * -1
'%s-%d' % ('a', 3) | '%5.1f|%-5s|%05d' % (2.25, 'ab', 42) | '%x %X %o %e %g' % (255, 255, 8, 12345.678, 0.0001) | '%%' % () | '%(a)s' % {'a': 1}
'%r %s' % ('q', none) | '%c%c' % ('a', 66) | '%+d % d' % (5, 5) | '%#x %#o' % (255, 8) | '%.3s' % 'abcdef' | '%*d' % (5, 42) | '%s' % 'x'
'%s' % [1] | '%s' % d | '%.2f' % 1 | '%d' % 3.9 | '%i' % true | '%5s|%-5s|' % ('é', 'é') | '%.0f %.0f' % (0.5, 1.5) | '%G' % 1e-10
'{} {}'.format(1, 'x') | '{1} {0}'.format('a', 'b') | '{a}-{b}'.format(a=1, b=2) | '{0[k]} {0.k}'.format({'k': 5}) | '{:>5}|{:<5}|{:^5}'.format('a', 'b', 'c')
'{:05d} {:+d} {:x} {:#x} {:b} {:,}'.format(42, 5, 255, 255, 5, 1234567) | '{:.2f} {:e} {:%} {:g}'.format(3.14159, 1234.5, 0.25, 1e10) | '{!r} {!s}'.format('a', 'b')
'{{}} {}'.format(1) | '{:*^9}'.format('mid') | '{:.3}'.format('abcdef') | '{:{}}|'.format('x', 4) | '{:10.3f}|'.format(2.5) | '{:_}'.format(1234567) | '{:012,}'.format(1234567) | '{}'.format(none)
l[0] | l[-1] | l[5] | l[1:] | l[:-1] | l[::-1] | l[::2] | t[1] | t[-2:] | t[::-1] | t[1:8:3] | t[10:2:-2] | 'abc'[5:] | d['b'] | d.b | d.a[1].k | d['x'] | ms[0].role | ms[-1]['content'] | (1, 2)[0] | l['0'] | d.a.1.k
[1, 'two', 3.0, none, true, (1,), {'a': "it's"}] | 'a\tb\n\x01é\u200b😀' | ['a\tb\n\x01é\u200b😀\\', "'", '"', '\'"'] | {1: 2, none: 3, true: 4} | () | (1, 2) | {}
x is defined | n is defined | n is undefined | no is none | n is number | b is number | f is float | n is integer | b is integer | b is boolean | s is string | d is mapping | l is iterable | l is sequence | d is sequence | s is sequence | n is iterable
n is odd | n is even | n is divisibleby 7 | n is divisibleby(2) | 'abc' is lower | 'ABC' is upper | 'aB' is lower | n is eq 7 | n is ne(7) | n is gt 3 | n is lt 3 | n is ge 7 | n is le 7 | n is sameas 7 | none is sameas none | 1 is in [1] | 'upper' is filter | 'nope' is filter | 'odd' is test | range is callable | n is callable | b is true | b is false | x is not defined | s is escaped
s | trim | s | upper | s | lower | s | trim | capitalize | 'hello wörld-foo (bar)' | title | 'a1b c' | title | "it's" | title | 'xxaxx' | trim('x') | 'a-b-c' | replace('-', '+') | 'a-b-c' | replace('-', '+', 1) | 5 | string | s | length | l | length | d | count | x | length
l | sort | l | sort(reverse=true) | ls | sort | ls | sort(case_sensitive=true) | ms | sort(attribute='role') | map(attribute='role') | list | ls | join(', ') | l | join | l | join('-') | ms | join('|', attribute='role') | ms | map(attribute='role') | join(',') | ls | map('upper') | list | ls | map('replace', 'A', 'x') | list
ms | selectattr('role', 'equalto', 'user') | list | ms | selectattr('role', 'in', ['user', 'system']) | map(attribute='content') | list | ms | rejectattr('role', 'eq', 'user') | list | length | l | select('odd') | list | l | reject('odd') | list | [0, 1, '', 'a'] | select | list | [0, 1] | reject | list | ms | selectattr('content') | list | length | ms | map(attribute='nope', default='D') | list
l | first | l | last | [] | first | [] | last | '' | first | 'abc' | first | 'abc' | last | l | min | l | max | ls | min | ls | max | [] | min | l | sum | [[1], [2]] | sum(start=[]) | ms | map(attribute='content') | map('length') | sum | [1, 1, 2, 'a', 'A'] | unique | list | ms | unique(attribute='role') | list | length
'abc' | reverse | l | reverse | list | d | dictsort | d | items | list | {'b': 1, 'A': 2, 'c': 0} | dictsort | {'b': 1, 'A': 2} | dictsort(true) | {'b': 1, 'A': 0} | dictsort(by='value') | {'b': 1, 'A': 2} | dictsort(reverse=true) | x | items | list
[1, 2, 3, 4, 5] | batch(2) | list | [1, 2, 3, 4, 5] | batch(2, 'x') | list | [1, 2, 3, 4, 5] | slice(3) | list | [1, 2, 3, 4, 5] | slice(3, 'x') | list | ms | groupby('role') | list | [{'a': 1, 'b': 'X'}, {'a': 2, 'b': 'x'}] | groupby('b') | list
'42' | int | 'x' | int | 'x' | int(7) | '3.9' | int | 3.9 | int | -3.9 | int | '0x1f' | int(0, 16) | 'ff' | int(0, 16) | '1_000' | int | ' 5 ' | int | true | int | none | int | [] | int(3) | '1e3' | int | '3.5' | float | 'x' | float | 'x' | float(1.5) | 3 | float | '1e3' | float | 'inf' | float | '-nan' | float
3.14159 | round(2) | 2.5 | round | 3.5 | round | -2.5 | round | 2.675 | round(2) | 1234.5 | round(-2) | 1234 | round(-2) | 1250 | round(-2) | 5 | round | 2.1 | round(0, 'ceil') | 2.9 | round(0, 'floor') | 2.123 | round(2, 'ceil') | -5 | abs | 5.5 | abs | true | abs
none | default('N') | x | default('D') | x | default | '' | default('E', true) | 0 | d(5, boolean=true) | 5 | default(6) | x.y | default('q') if x else 'u' | d.nope | default('w')
'a\nb\n\nc' | indent | 'a\nb' | indent(2, true) | 'a\n\nb' | indent(2, blank=true) | 'a\nb' | indent('> ') | 'a\nb\n' | indent(1) | '' | indent(2, true) | 'foo bar baz qux' | truncate(9) | 'foo bar baz qux' | truncate(9, true) | 'foo bar baz qux' | truncate(11) | 'foo bar baz qux' | truncate(11, false, '…', 0) | 'x' | truncate
'a' | center(5) | 'ab' | center(5) | 'a b  c_d é-f' | wordcount | '<a href="x">b & c</a>' | escape | '<b>' | safe | '<b>' | e | '<b>' | safe | e | '<b>' | forceescape | '<p>Hi  <b>you</b></p>' | striptags | 'a b/c?d=é&x' | urlencode | {'a': 1, 'b c': 'é'} | urlencode | [('a', 1)] | urlencode | {'class': 'x', 'n': none, 'q': '"'} | xmlattr
1 | filesizeformat | 100 | filesizeformat | 1000 | filesizeformat | 1234567 | filesizeformat | 1048576 | filesizeformat(true) | 2048 | filesizeformat(binary=true) | '%s and %s' | format('a', 2) | '%(x)s' | format(x=1) | {'b': 1, 'a': [1, 2]} | pprint | 'x' | pprint
d | tojson | l | tojson(indent=2) | d | tojson(indent=2) | d | tojson(sort_keys=true) | 'é<>&\'"\\/\u2028\x7f' | tojson | 'é😀' | tojson(ensure_ascii=true) | [1.0, 1e20, 1e-7, 0.1] | tojson | [] | tojson(indent=2) | {} | tojson | {'a': {}} | tojson(indent=1) | d | tojson(separators=(',', ':')) | (1, 2) | tojson | {1: 2, none: 3, 2.5: 1, true: 0} | tojson | 'a\b\f\r' | tojson | none | tojson | 'inf' | float | tojson | l | tojson(indent='--') | {'é': 1} | tojson
s.strip() | s.lstrip() | s.rstrip() | s.upper() | s.split() | 'a,b,,c'.split(',') | 'a,b,c'.split(',', 1) | 'a,b,c'.rsplit(',', 1) | ' a  b c '.split(none, 1) | ' a  b c '.rsplit(none, 1) | ' a b '.split(' ') | 'a\nb\r\nc\n'.splitlines() | 'a\nb\n'.splitlines(true) | 'abc'.startswith('a') | 'abc'.startswith(('x', 'a')) | 'abc'.endswith('bc') | 'abc'.startswith('b', 1) | 'abc'.endswith('b', 0, 2)
'banana'.replace('an', 'AN', 1) | 'aaa'.replace('', '-') | 'abc'.replace('', '-', 2) | 'banana'.find('an') | 'banana'.rfind('an') | 'banana'.find('x') | 'banana'.index('n') | 'banana'.count('a') | 'banana'.count('') | 'héllo'.find('l') | 'banana'.find('an', 2) | 'banana'.count('a', 2, 5) | ','.join(['a', 'b']) | ''.join([]) | '-'.join('abc') | 'abc'.title() | "it's a1b".title() | 'aBc'.swapcase() | 'ABC'.casefold() | 'ß'.casefold() | 'ß'.upper() | 'ǆ'.title() | 'ΑΣ ΑΣΑ'.lower() | 'ﬁx'.capitalize()
'12'.isdigit() | '²'.isdigit() | '²'.isdecimal() | '½'.isnumeric() | 'ab1'.isalnum() | 'ab'.isalpha() | ' \t'.isspace() | ''.isspace() | 'Ab'.istitle() | 'ab'.islower() | 'AB'.isupper() | 'a_1'.isidentifier() | '1a'.isidentifier() | 'é'.isascii() | 'a\n'.isprintable() | ''.isprintable()
'ab'.ljust(4) ~ '|' | 'ab'.rjust(4, '*') | 'ab'.center(5, '-') | '-42'.zfill(6) | 'abc'.partition('b') | 'abc'.rpartition('x') | 'abc'.partition('x') | 'a.b.c'.rpartition('.') | 'abc'.removeprefix('a') | 'abc'.removesuffix('bc') | 'a\tb'.expandtabs(4) | 'ab\tc'.expandtabs() | 'é'.encode() | 'abc'.encode('utf-8') | 'xyabcyx'.strip('xy') | 'xyabcyx'.lstrip('yx') | 'xyabcyx'.rstrip('xy') | '\u3000a\xa0'.strip()
d.get('b') | d.get('q') | d.get('q', 9) | d.keys() | list | d.values() | list | d.items() | list | d.copy() | l.count(1) | l.index(1) | l.copy() | (1, 2, 1).count(1) | (1, 2).index(2) | n.real | n.bit_length() | f.is_integer() | d.keys() | d.items() | 'b' in d.keys() | ('b', 1) in d.items() | d.keys() | length
range(5) | list | range(2, 8, 3) | list | range(5, 0, -2) | list | range(3) | range(1, 4)[1] | range(10)[2:5] | list | range(3) | length | 2 in range(3) | dict(a=1, b=2) | dict({'x': 1}, y=2) | dict([('a', 1)]) | dict() | namespace(a=1).a | namespace({'q': 2}).q | namespace().x is defined | cycler('a', 'b').next() | range(4) | sum | range(5) | reverse | list
strftime_now('%Y-%m-%d') | strftime_now('%d %b %Y %H:%M:%S') | strftime_now('%A %B %j %y %p %I') | strftime_now('%-d/%-m') | strftime_now('%% x é') | strftime_now('%e %k %D %F %T %R %u %w')
raise_exception('boom') | raise_exception('x' ~ 1) | x.y | x + 1 | x() | x[0] | none.foo | none.foo.bar | d.nope.deeper | l.append(1) | d.pop('a') | d.update({}) | l.sort() | s.__class__ | d.__class__ | ''.__class__.mro() | s['__class__'] | x.__class__
'a' + 1 | 1 + 'a' | [1] + 'a' | none + 'a' | 'a' - 1 | 'a' * 'b' | 1 / 0 | 1 // 0 | 1 % 0 | 1.0 / 0 | -'a' | 1 < 'a' | none < 1 | [1] < 1 | 1 in 1 | 'a' in none | 1 in 'a' | l['x'].y | n() | s() | none() | 5[0] | (no)[1:] | n[1:] | d[1:] | l['a':] | l[::0] | {[]: 1} | d[[]] | 'abc'[1.0]
none | length | 5 | length | 5 | list | none | join | 5 | first | none | sort | [1, 'a'] | sort | [none, 1] | max | 'a' | abs | 'a' | round | none | upper | x | upper | none | tojson | range | tojson | cycler('a') | tojson | l | map('nope') | list | l | select('nope') | list | l | map | list | {'a': x} | tojson | range(200000) | range() | range('a') | '%d' % 'a' | '%s %s' % 'a' | '%s' % (1, 2) | '%q' % 1 | '%' % () | '{}'.format() | '{a}'.format() | '{:d}'.format('a') | '{'.format() | '}'.format() | 'a'.split('') | 'a'.index('z') | 'a'.join([1]) | 'a'.join(1) | 'abc'.startswith(1) | l.index(9) | 'a'.center('x') | 'a' | replace | 'a' | trim(1) | 'a' | indent('x', 1, 2, 3) | d.get() | [1,2] | batch | loop
""".strip("\n")

TEMPLATES = r"""
a
  {% if true %}
  b
  {% endif %}
c
====
{%- if true -%}  x  {%- endif -%}  y
====
  {%+ if true %}a{% endif %}  {# c #}
b {#- d -#} c
{# line #}
e
====
{% raw %}{{ x }} {% if %}{% endraw %} {%- raw -%}  {{ y }}  {%- endraw -%} z
====
a{% set x = 1 %}

b{{ x }}

====
x
{{- 1 }}
 {{ 2 -}}
 y
====
{% for i in l %}{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}{% endfor %}
====
{% for i in [] %}x{% else %}none{% endfor %}|{% for i in l if i > 5 %}x{% else %}none{% endfor %}
====
{% for i in l if i > 1 %}{{ loop.index0 }}{{ i }}{{ loop.first }}{{ loop.last }}{{ loop.revindex }}{{ loop.revindex0 }};{% endfor %}
====
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for a, (b, c) in [[1, [2, 3]]] %}{{ a }}{{ b }}{{ c }}{% endfor %}
====
{% for i in l %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% if i == 2 %}{% break %}{% endif %}{% else %}E{% endfor %}
====
{% for i in [1] %}{% break %}{% else %}E{% endfor %}|{% for i in [1] %}{% continue %}{% else %}E{% endfor %}
====
{% for i in l %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }}{{ loop.cycle('a', 'b') }}{{ loop.changed(i > 1) }}{% endfor %}
====
{% for n in [{'v': 1, 'c': [{'v': 2, 'c': []}]}, {'v': 3, 'c': []}] recursive %}{{ loop.depth }}:{{ n.v }}{{ loop(n.c) }}{% endfor %}
====
{% for x in l | map('string') %}{{ x }}{{ loop.length }}{% endfor %}{% for x in l | select('odd') %}{{ x }}{{ loop.last }}{% endfor %}
====
{% set ns = namespace(done=false, n=0) %}{% for i in [1, 2, 3] if not ns.done %}{{ i }}{% if i == 2 %}{% set ns.done = true %}{% endif %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}{{ ns.done }}
====
{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }}
====
{% set x = 1 %}{% if true %}{% set x = 2 %}{% endif %}{{ x }}{% if false %}{% set y = 1 %}{% endif %}{{ y is defined }}
====
{% if n > 100 %}{% set s = 'new' %}{% endif %}{{ s }}{% for i in [1] %}{% if false %}{% set s = 'in' %}{% endif %}{{ s }}{% endfor %}
====
{{ q is defined }}{% set q = 1 %}{{ q }}{% for i in [1] %}{{ q }}{% set q = 2 %}{{ q }}{% endfor %}{{ q }}
====
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set c = (1, 2) %}{{ c }}{% set (e, f) = [3, 4] %}{{ e }}{{ f }}{% set ns = namespace() %}{% set ns.p, g = 5, 6 %}{{ ns.p }}{{ g }}
====
{% set t %}a{{ 1 }}b{% endset %}{{ t }}{% set u | upper | trim %} xy {% endset %}{{ u }}|{% set v %}{% for i in l %}{{ i }}{% endfor %}{% endset %}{{ v | length }}
====
{% set s %}{{ s }}!{% endset %}[{{ s }}]
====
{% macro f(a, b='z', c=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ f(1) }}|{{ f(1, 2) }}|{{ f(b=3, a=4) }}|{{ f() }}|{{ f(1, c=2) }}
====
{% macro f(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, 3, k=4) }}{{ f() }}
====
{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}
====
{% macro w(x) %}<{{ caller(x) }}>{% endmacro %}{% call(y) w(5) %}in {{ y }}{{ n }}{% endcall %}
====
{% macro w() %}{{ caller is defined }}{{ caller() if caller }}{% endmacro %}{{ w() }}{% call w() %}x{% endcall %}
====
{% macro f() %}{{ x }}{% endmacro %}{% set x = 1 %}{{ f() }}{% set x = 2 %}{{ f() }}
====
{% macro f(x) %}{% set x = x ~ '!' %}{{ x }}{% endmacro %}{{ f('a') }}{{ f('b') }}{{ f.name }}{{ f.arguments }}
====
{% macro m(msg) %}{{ msg.role }}{% for c in msg.content %}{{ c }}{{ loop.index }}{% endfor %}{% endmacro %}{% for x in ms %}{{ m(x) }}{% endfor %}
====
{% filter upper %}abc{{ 'x' }}{% endfilter %}{% filter replace('a', 'b') | upper %}aaa{% endfilter %}
====
{% with a = 1, b = n %}{{ a }}{{ b }}{% set n = 9 %}{{ n }}{% endwith %}{{ n }}{{ a is defined }}
====
{% generation %}g{% set zz = 1 %}{{ zz }}{% endgeneration %}{{ zz is defined }}{%- generation -%}  h  {%- endgeneration -%}
====
{% block b %}inner {{ n }}{% endblock %}{% set k = 5 %}{% block c %}{{ k }}{% for i in l %}{{ i }}{% endfor %}{% endblock c %}
====
{% print 1, 'a', n %}{% if n == 7: %}y{% endif %}{% if x is not defined and n %}z{% elif n %}w{% else %}v{% endif %}
====
{% if false %}{{ x | nofilter }}{% endif %}{{ 'ok' if true else (1 | nofilter) }}
====
{% set a = '<' | safe %}{{ a + '<"\'>' }}{{ a ~ '<' }}{{ ('<b>%s</b>' | safe) % '<x>' }}{{ ('{}' | safe).format('<') }}{{ (a | string) + '&' }}{{ '<' + a }}{{ a | upper }}{{ [a] }}
====
{% set a = '<i>' | safe %}{{ a.replace('i', '<') }}{{ a.join(['<', 'x']) }}{{ (a * 2) + '<' }}{{ a[0] + '<' }}{{ a.split('i')[0] + '<' }}{{ (a | trim) + '>' }}{{ a | replace('i', '<') }}{{ a | length }}
====
{% autoescape true %}{{ '<' }}{{ '<' | safe }}{% set q %}<{% endset %}{{ q }}{{ ['<', '>'] | join('&') }}{{ '<' ~ '>' }}{% endautoescape %}{{ '<' }}
====
{% set j = joiner() %}{% for i in l %}{{ j() }}{{ i }}{% endfor %}{% set c = cycler('x', 'y') %}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.next() }}
====
{% set g = l | map('string') %}{{ g | list }}{{ g | list }}{% if l | select('gt', 100) %}gen{% endif %}
====
{{ "a" "b" 'c' }}{{ 'line\
cont' }}{{ "\u00e9\x41\101\n\q" }}{{ 'tab\t|' }}
====
{%- for m in messages %}{{ m.content }}{%- endfor %}{{ messages is defined }}{{ tools }}{{ tools is none }}
====
{% for c in 'añ👍' %}[{{ c }}]{% endfor %}{% for k in d %}{{ k }}{% endfor %}{% for i in range(3) %}{{ i }}{% endfor %}{% for x in nope %}{{ x }}{% endfor %}
====
{{ [1, 2] | map('nope') | first if false else 'lazy' }}{% set z = l | map('nope') %}ok
====
{% set f = ns_missing | default(namespace(a=1)) %}{{ f.a }}{{ f }}{{ (l | map('string')) is iterable }}
====
{% set o = namespace(items=[]) %}{% for i in l %}{% set o.items = o.items + [i * 2] %}{% endfor %}{{ o.items }}
====
{{ d.items }}
====
{% set loop_messages = ms[1:] if ms[0].role == 'system' else ms %}{% for m in loop_messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('no') }}{% endif %}<|{{ m.role }}|>{{ m.content | trim }}{% endfor %}
====
{% for m in ms %}{% if m.role=='x' %}{% break %}{% endif %}{% if loop.index0==9 %}{% continue %}{% endif %}{{ m.content }}{% endfor %}
====
{% set u = ms | rejectattr('role','equalto','system') | list %}{{ u|length }}{{ ms | selectattr('role','in',['user']) | map(attribute='content') | join(',') }}
====
{% generation %}{{ ms[0].content }}{% endgeneration %}{%- generation -%} {{ ms[1].content }} {%- endgeneration -%}
====
{% set c = 'a<think>b</think>\n c'.split('</think>') %}{{ (c|last).lstrip('\n') }}{{ (c|first).rstrip('\n') }}{{ c[-1][1:] }}{{ 'x'.startswith('x') }}{{ {'a':1}.items()|list }}
====
{{ {'name': 'f', 'description': "temp > 10 & it's <50", 'parameters': {'z': 1.0, 'a': 1e20, 'é': '日本'}} | tojson }}{{ [{'a': 1}] | tojson(indent=2) }}
====
{{ strftime_now('%d %b %Y') }} {{ strftime_now('%B %-d %Y') }}
====
{% if %}x{% endif %}
====
{% for x in %}{% endfor %}
====
{% if true %}
====
{% endif %}
====
{% for x in l %}{% endif %}{% endfor %}
====
{{ a b }}
====
{% nope %}
====
{{ 1
====
{# open
====
{{ [1, 2 }}
====
{% set 1 = 2 %}
====
{{ foo(1 }}
====
{{ 'open }}
====
{{ 1 | }}
====
{{ 1 | nofilter }}
====
{{ 1 is notest }}
====
{{ 1 is defined is defined }}
====
{% macro f(a=1, b) %}{% endmacro %}
====
{% break %}
====
{% for x in l %}{% macro f() %}{% break %}{% endmacro %}{% endfor %}
====
{% for loop in l %}{% endfor %}
====
{% set x.y = 1 %}
====
{% set n.y = 1 %}
====
{% call 5 %}{% endcall %}
====
{% block a %}{% endblock %}{% block a %}{% endblock %}
====
{% raw %}x
====
{{ }}
====
{{ 5 ! 3 }}
====
{% set none = 1 %}
====
{% for a, b in [[1]] %}{% endfor %}
====
{% for a, b in [[1, 2, 3]] %}{% endfor %}
====
{% for a, b in [1] %}{% endfor %}
====
{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}
====
{% macro f(a) %}{{ a }}{% endmacro %}{{ f(b=2) }}
====
{% macro f(a) %}{{ a.x }}{% endmacro %}{{ f() }}
====
{% for i in l %}{{ loop(l) }}{% endfor %}
====
{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}
====
{% include 'x' %}
====
{{ f(a=1, a=2) }}
====
{{ f(*l, **d) }}
====
{% macro f(a, b, c) %}{{ a }}{{ b }}{{ c }}{{ kwargs }}{% endmacro %}{{ f(*l) }}{{ f(1, **{'b': 2, 'q': 3}) }}{{ f(*[1], c=5) }}
====
{{ '\ud83d' }}
====
{% for a, in [[1]] %}{{ a }}{% endfor %}
====
{{ '' '' }}{{ '' 'a' }}
====
{{ l | sort(x) }}
====
{{ d \\ 1 }}
====
{% for k, v in d.items() if k != 'a' %}{{ k }}{{ loop.last }}{{ loop.previtem }}{% endfor %}
====
{% set _ns = namespace(_a=1) %}
"""


def expressions(text):
    """Expressions are separated by ' | ' as in Jinja's own filters; a new one starts where the pieces so far parse and
    the next piece is not a filter call.  To stay simple, every cut that parses is tried: all prefixes become cases."""
    env = environment()
    out = []
    for line in text.split("\n"):
        parts = line.split(" | ")
        i = 0
        while i < len(parts):
            expr = parts[i]
            out.append(expr)
            k = i + 1
            while k < len(parts) and parts[k].split("(")[0].strip() in env.filters:
                expr += " | " + parts[k]
                out.append(expr)
                k += 1
            i = k
    return out


def main():
    env = environment()
    seen = set()
    cases = ["{{ " + e + " }}" for e in expressions(EXPR)] + TEMPLATES.strip("\n").split("\n====\n")
    print(json.dumps({"input": IN}, ensure_ascii=False))
    for t in cases:
        if t in seen:
            continue
        seen.add(t)
        r = run(env, t, IN)
        if "x" in r and (" at 0x" in r["x"] or "<function" in r["x"] or "built-in method" in r["x"]):
            continue  # an address: nothing to compare
        try:
            print(json.dumps({"t": t, **r}, ensure_ascii=False))
        except UnicodeEncodeError:
            continue


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    main()
