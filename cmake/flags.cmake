# How every C file is compiled.
set(CMAKE_C_STANDARD 17)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_C_FLAGS_RELEASE "-O2 -g")
set(CMAKE_C_FLAGS_DEBUG "-O1 -g -DHD_DEBUG")
add_compile_options(-Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith
                    -Wundef -Wvla -Wformat=2 -fno-math-errno -fno-strict-aliasing
                    -ffp-contract=off -fstack-protector-strong)
add_compile_definitions(_GNU_SOURCE)
