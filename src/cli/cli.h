/* cli.h - what the commands share. */
#ifndef HD_CLI_CLI_H
#define HD_CLI_CLI_H

enum { EXIT_FAILED = 1, EXIT_USAGE = 64 }; /* DESIGN: 0 done, 1 the request failed, 64 wrong usage */

#endif
