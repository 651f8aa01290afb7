/* The CPU learner on a thread of its own: AgentSettings.threaded. */
#ifndef DQN_CPU_LEARNER_THREADED_H
#define DQN_CPU_LEARNER_THREADED_H

#include "dqn/learner.h"

/* Creates a learner as learner_cpu_create, for what learner_cpu_create makes otherwise. */
AmStatus learner_threaded_create(Learner **learner, const Learner *base, AmError *error);

#endif
