/* quant_int.h - one block each: 256 (IQ4_NL: 32) values in, block_bytes out.  Any input is taken; a NaN or infinity
 * spoils its block's values, nothing else. */
#ifndef HD_TENSOR_QUANT_INT_H
#define HD_TENSOR_QUANT_INT_H

#include "tensor/block.h"

void quant_q2_k(const float *x, uint8_t *b);
void quant_q3_k(const float *x, uint8_t *b);
void quant_q4_k(const float *x, uint8_t *b);
void quant_q5_k(const float *x, uint8_t *b);
void quant_q6_k(const float *x, uint8_t *b);
void quant_iq4_nl(const float *x, uint8_t *b);
void quant_iq4_xs(const float *x, uint8_t *b);

#endif
