/* automap agent evaluate: the agent's plans beside the exact optimum, on unseen sets or on files. */
#ifndef CLI_COMMANDS_AGENT_EVALUATE_H
#define CLI_COMMANDS_AGENT_EVALUATE_H

#include "cli/common.h"

#define AGENT_DEFAULT_SETS    10000
#define AGENT_EVALUATION_SEED 2000003 /* added to --seed: no training has seen these sets */

AmStatus agent_evaluate(const Cli *cli, AmError *error);

#endif
