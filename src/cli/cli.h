/* cli.h - what the commands share. */
#ifndef HD_CLI_CLI_H
#define HD_CLI_CLI_H

/* X(name, what it does).  Each is int cmd_NAME(int argc, char **argv) in NAME.c, argv[0] being the name. */
#define COMMANDS(X)                                                                                                    \
    X(serve, "an OpenAI-compatible server over HTTP")                                                                  \
    X(run, "chat with a model in the terminal")                                                                        \
    X(generate, "complete a prompt, or a file of them")                                                                \
    X(embed, "the embedding of a text")                                                                                \
    X(logits, "raw logits of a text")                                                                                  \
    X(perplexity, "perplexity of a text file")                                                                         \
    X(bench, "speed of a model on this machine")                                                                       \
    X(doctor, "what this machine offers, and how a server is doing")                                                   \
    X(detokenize, "token ids to text")                                                                                 \
    X(inspect, "what a model file holds")                                                                              \
    X(fit, "what a model needs and whether this machine holds it")                                                     \
    X(render, "a conversation through a chat template")                                                                \
    X(tokenize, "text to token ids")                                                                                   \
    X(version, "print the version")

#define X(name, what) int cmd_##name(int argc, char **argv);
COMMANDS(X)
#undef X

enum { EXIT_FAILED = 1, EXIT_USAGE = 64 }; /* DESIGN: 0 done, 1 the request failed, 64 wrong usage */

#endif
