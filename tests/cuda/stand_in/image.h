/* The image that the stand-in NVRTC writes and the stand-in driver loads: this mark, the
 * target ("sm_90", or "compute_90" for PTX), a new line, and the device code. */
#ifndef TESTS_CUDA_STAND_IN_IMAGE_H
#define TESTS_CUDA_STAND_IN_IMAGE_H

#define STAND_IN_IMAGE "stand-in image for "

#endif
