/* The facts of a sample of layers that prices and cuts need (IrLoops in ir/analysis/loops.h): the layer of
 * each instruction and how many layers it stands for, where a stage may begin, and which collectives run
 * beside operators. */
#ifndef IR_LAYERS_SAMPLE_LOOPS_H
#define IR_LAYERS_SAMPLE_LOOPS_H

#include "ir/layers/layer_run.h"
#include "ir/layers/sample_layers.h"

/* Sets the facts in module->loops. Called computations have the number of their caller. */
AmStatus sample_loops_set(IrModule *module, const LayerRun *run, const IrLayerSample *record, AmError *error);

#endif
