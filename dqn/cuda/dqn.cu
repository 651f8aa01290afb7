/* Device code of the DQN: all of an update except the matrix products and the
 * convolutions. Compiled by NVRTC for the card at hand; plain kernels without
 * includes.
 *
 * Counters live in device memory, so that a graph of one update can be replayed
 * without new arguments: counters[] = {updates, Adam's steps, transitions held,
 * place written next}, sums[] = {largest raw priority, sum of losses}. Formulas
 * and the order of the sums are those of the CPU (replay.c, loss.c, adam_cpu.c).
 *
 * The sum tree is a complete binary tree of doubles: leaf i is tree[width + i],
 * an inner node its left plus its right child. Writers set their leaves and then
 * recompute the parents level by level, with a barrier between levels: that is
 * why every kernel that changes it is one block.
 */

typedef long long Integer;
typedef unsigned long long Bits;
typedef unsigned char Byte;

enum { UPDATES, ADAM_STEPS, HELD, NEXT };
enum { MAX_PRIORITY, LOSS };
enum { THREADS = 256 }; /* of a block, where rows of a batch do not have blocks of their own */

/* base/random.c: splitmix64's mixing function over (seed, stream, index). */
__device__ Bits mix(Bits z) {
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return z ^ z >> 31;
}

__device__ double uniform_at(Bits seed, Bits stream, Bits index) {
    const Bits golden = 0x9E3779B97F4A7C15ull;
    Bits key = mix(mix(seed + golden) + (stream + 1) * golden);
    return (double)(mix(key + (index + 1) * golden) >> 11) * 0x1p-53;
}

/* sum_tree.c: a subtree without mass is never entered. */
__device__ int find(const double *tree, int width, double position) {
    int node = 1;
    while (node < width) {
        double left = tree[2 * node], right = tree[2 * node + 1];
        node *= 2;
        if (right > 0 && (left <= 0 || position >= left)) {
            position -= left;
            node++;
        }
    }
    return node - width;
}

/* The largest value[t] of a block; `shared` has room for one per thread. */
__device__ double block_maximum(double value, double *shared) {
    shared[threadIdx.x] = value;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if ((int)threadIdx.x < half && shared[threadIdx.x + half] > shared[threadIdx.x])
            shared[threadIdx.x] = shared[threadIdx.x + half];
        __syncthreads();
    }
    double result = shared[0];
    __syncthreads();
    return result;
}

/* Stores `rows` transitions, at most the capacity, over the oldest. staging is
 * [rows, 2 size + actions + 3]: observation, next observation, mask, action,
 * reward, discount, all as floats. New masses are the largest priority ^ alpha. */
extern "C" __global__ void dqn_store(const float *staging, int rows, int size, int actions, int capacity,
                                     int width, double alpha, Integer *counters, const double *sums,
                                     float *observations, float *next_observations, Byte *next_masks,
                                     int *taken, float *rewards, float *discounts, double *tree) {
    int row_width = 2 * size + actions + 3;
    int next = (int)counters[NEXT];
    for (int row = 0; row < rows; row++) {
        const float *from = staging + (Integer)row * row_width;
        Integer at = (next + row) % capacity;
        for (int k = threadIdx.x; k < row_width; k += THREADS) {
            int rest = k - 2 * size - actions;
            if (k < size) observations[at * size + k] = from[k];
            else if (k < 2 * size) next_observations[at * size + k - size] = from[k];
            else if (rest < 0) next_masks[at * actions + k - 2 * size] = from[k] != 0;
            else if (rest == 0) taken[at] = (int)from[k];
            else if (rest == 1) rewards[at] = from[k];
            else discounts[at] = from[k];
        }
    }
    double mass = pow(sums[MAX_PRIORITY], alpha);
    for (int row = threadIdx.x; row < rows; row += THREADS) tree[width + (next + row) % capacity] = mass;
    for (int level = 2; level <= width; level *= 2) {
        __syncthreads();
        for (int row = threadIdx.x; row < rows; row += THREADS) {
            int node = (width + (next + row) % capacity) / level;
            tree[node] = tree[2 * node] + tree[2 * node + 1];
        }
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    counters[NEXT] = (next + rows) % capacity;
    counters[HELD] = counters[HELD] + rows < capacity ? counters[HELD] + rows : capacity;
}

/* One index from each of `batch` equal parts of the mass, with its importance
 * weight (N P)^-beta over the largest of the batch. One block. */
extern "C" __global__ void dqn_draw(const double *tree, int width, int batch, Bits seed, double beta,
                                    const Integer *counters, int *indices, float *weights) {
    __shared__ double shared[THREADS];
    int held = (int)counters[HELD];
    double total = tree[1], largest = 0;
    for (int i = threadIdx.x; i < batch; i += THREADS) {
        double position = total * (i + uniform_at(seed, (Bits)counters[UPDATES], (Bits)i)) / batch;
        int index = find(tree, width, position);
        if (index >= held) index = held - 1;
        double weight = pow(held * (tree[width + index] / total), -beta);
        indices[i] = index;
        weights[i] = (float)weight;
        if (weight > largest) largest = weight;
    }
    largest = block_maximum(largest, shared);
    for (int i = threadIdx.x; i < batch; i += THREADS) weights[i] = (float)(weights[i] / largest);
}

/* Copies what was drawn next to each other; block i takes row i. `batch_rows` is
 * [2 batch, size]: the states, then the states that follow. */
extern "C" __global__ void dqn_gather(const int *indices, int batch, int size, int actions,
                                      const float *observations, const float *next_observations,
                                      const Byte *next_masks, const int *taken, const float *rewards,
                                      const float *discounts, float *batch_rows, Byte *batch_masks,
                                      int *batch_taken, float *batch_rewards, float *batch_discounts) {
    Integer row = blockIdx.x, from = indices[row];
    for (int k = threadIdx.x; k < size; k += (int)blockDim.x) {
        batch_rows[row * size + k] = observations[from * size + k];
        batch_rows[(batch + row) * size + k] = next_observations[from * size + k];
    }
    for (int k = threadIdx.x; k < actions; k += (int)blockDim.x)
        batch_masks[row * actions + k] = next_masks[from * actions + k];
    if (threadIdx.x != 0) return;
    batch_taken[row] = taken[from];
    batch_rewards[row] = rewards[from];
    batch_discounts[row] = discounts[from];
}

/* What is added to the advantages of a row: v - mean(a), or 0 without dueling. */
__device__ float value_base(const float *head, int actions, int dueling) {
    float sum = 0;
    if (!dueling) return 0;
    for (int a = 0; a < actions; a++) sum += head[1 + a];
    return head[0] - sum / (float)actions;
}

/* values[rows, actions] from head[rows, dueling + actions]; block i takes row i. */
extern "C" __global__ void dqn_values(const float *head, int actions, int dueling, float *values) {
    __shared__ float base;
    const float *row = head + (Integer)blockIdx.x * (actions + dueling);
    if (threadIdx.x == 0) base = value_base(row, actions, dueling);
    __syncthreads();
    for (int a = threadIdx.x; a < actions; a += (int)blockDim.x)
        values[(Integer)blockIdx.x * actions + a] = base + row[dueling + a];
}

/* The learning targets, the loss and its derivative by the head's outputs; block
 * i takes row i. online[2 batch or batch, dueling + actions] are the heads of the
 * states and, where double_q, of the states that follow; target[batch, ..] those
 * of the states that follow. Fills errors[batch] (unweighted), losses[batch]
 * (weighted, over the batch) and gradients[batch, dueling + actions]. */
extern "C" __global__ void dqn_loss(const float *online, const float *target, const Byte *masks,
                                    const int *taken, const float *rewards, const float *discounts,
                                    const float *weights, int batch, int actions, int dueling, int double_q,
                                    double huber, float *errors, double *losses, float *gradients) {
    __shared__ float bases[3], slope_shared;
    Integer row = blockIdx.x, width = actions + dueling;
    const float *here = online + row * width, *there = target + row * width;
    const float *choosing = double_q ? online + (batch + row) * width : there;
    const float *heads[3] = {here, there, choosing};
    if (threadIdx.x < 3) bases[threadIdx.x] = value_base(heads[threadIdx.x], actions, dueling);
    __syncthreads();
    int action = taken[row];
    if (threadIdx.x == 0) {
        float goal = rewards[row];
        int best = -1;
        float most = 0;
        for (int a = 0; discounts[row] != 0 && a < actions; a++) {
            float value = bases[2] + choosing[dueling + a];
            if (masks[row * actions + a] && (best < 0 || value > most)) {
                best = a;
                most = value;
            }
        }
        if (best >= 0) goal += discounts[row] * (bases[1] + there[dueling + best]);
        double delta = (double)goal - (bases[0] + here[dueling + action]);
        bool linear = huber > 0 && fabs(delta) > huber;
        double slope = linear ? copysign(huber, delta) : delta;
        double loss = linear ? huber * (fabs(delta) - huber / 2) : delta * delta / 2;
        errors[row] = (float)delta;
        losses[row] = weights[row] * loss / batch;
        slope_shared = (float)(-weights[row] * slope / batch);
    }
    __syncthreads();
    float slope = slope_shared, mean = dueling ? slope / (float)actions : 0;
    float *gradient = gradients + row * width;
    if (dueling && threadIdx.x == 0) gradient[0] = slope;
    for (int a = threadIdx.x; a < actions; a += (int)blockDim.x)
        gradient[dueling + a] = (a == action ? slope : 0) - mean;
}

/* Adam over all parameters (adam_cpu.c), and every target_update updates the copy
 * into the target network. */
extern "C" __global__ void dqn_adam(int count, double learning_rate, double beta1, double beta2,
                                    double epsilon, int target_update, const Integer *counters,
                                    const float *gradients, float *parameters, float *target, float *first,
                                    float *second) {
    __shared__ float shared[2];
    if (threadIdx.x == 0) {
        double step = (double)(counters[ADAM_STEPS] + 1);
        double correction1 = 1 - pow(beta1, step), correction2 = sqrt(1 - pow(beta2, step));
        shared[0] = (float)(learning_rate * correction2 / correction1);
        shared[1] = (float)(epsilon * correction2);
    }
    __syncthreads();
    const float negligible = 1e-30f;
    float keep1 = (float)beta1, keep2 = (float)beta2;
    float rest1 = (float)(1 - beta1), rest2 = (float)(1 - beta2);
    bool copies = (counters[UPDATES] + 1) % target_update == 0;
    int i = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (i >= count) return;
    float gradient = gradients[i];
    float m = keep1 * first[i] + rest1 * gradient;
    float v = keep2 * second[i] + rest2 * gradient * gradient;
    m = fabsf(m) < negligible ? 0 : m;
    v = v < negligible ? 0 : v;
    float parameter = parameters[i] - shared[0] * m / (sqrtf(v) + shared[1]);
    first[i] = m;
    second[i] = v;
    parameters[i] = parameter;
    if (copies) target[i] = parameter;
}

/* The raw priority of row i; an error that is not finite takes the largest one
 * that was known when its turn came. */
__device__ double raw_priority(const float *errors, int i, double epsilon, double largest) {
    double priority = fabs((double)errors[i]) + epsilon;
    if (isfinite(priority)) return priority;
    for (int k = 0; k < i; k++) {
        double earlier = fabs((double)errors[k]) + epsilon;
        if (isfinite(earlier) && earlier > largest) largest = earlier;
    }
    return largest;
}

/* The end of an update: new priorities of indices[batch] from errors[batch] (of
 * equal indices the last counts), the tree above them, the sum of losses, and
 * the counters. `owners` [capacity] is 0 before and after. One block. */
extern "C" __global__ void dqn_finish(const int *indices, const float *errors, const double *losses,
                                      int batch, int width, double alpha, double epsilon, int *owners,
                                      double *tree, double *sums, Integer *counters) {
    __shared__ double shared[THREADS];
    double before = sums[MAX_PRIORITY], largest = before;
    for (int i = threadIdx.x; i < batch; i += THREADS) atomicMax(&owners[indices[i]], i + 1);
    __syncthreads();
    for (int i = threadIdx.x; i < batch; i += THREADS) {
        double priority = raw_priority(errors, i, epsilon, before);
        if (priority > largest) largest = priority;
        if (owners[indices[i]] == i + 1) tree[width + indices[i]] = pow(priority, alpha);
    }
    largest = block_maximum(largest, shared);
    for (int i = threadIdx.x; i < batch; i += THREADS) owners[indices[i]] = 0;
    for (int level = 2; level <= width; level *= 2) {
        __syncthreads();
        for (int i = threadIdx.x; i < batch; i += THREADS) {
            int node = (width + indices[i]) / level;
            tree[node] = tree[2 * node] + tree[2 * node + 1];
        }
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    double loss = 0;
    for (int i = 0; i < batch; i++) loss += losses[i];
    sums[LOSS] += loss;
    sums[MAX_PRIORITY] = largest;
    counters[UPDATES]++;
    counters[ADAM_STEPS]++;
}

/* Every inner node of the tree, after all leaves were written. One block. */
extern "C" __global__ void dqn_build_tree(double *tree, int width) {
    for (int first = width / 2; first >= 1; first /= 2) {
        for (int node = first + threadIdx.x; node < 2 * first; node += THREADS)
            tree[node] = tree[2 * node] + tree[2 * node + 1];
        __syncthreads();
    }
}

/* A dense layer, for shapes that cuBLASLt has no product for: a thread computes
 * the elements first, first + step, .. of the result, each sum in one thread. */
__device__ void dense_forward(Integer first, Integer step, const float *inputs, const float *weights,
                              const float *biases, int rows, int input_count, int output_count, int relu,
                              float *outputs) {
    for (Integer i = first; i < (Integer)rows * output_count; i += step) {
        int column = (int)(i % output_count);
        const float *row = inputs + i / output_count * input_count;
        float sum = biases[column];
        for (int k = 0; k < input_count; k++) sum += row[k] * weights[(Integer)k * output_count + column];
        outputs[i] = relu && !(sum > 0) ? 0 : sum;
    }
}

/* dW = X' D, and behind it db = sums of D over the rows. */
__device__ void dense_gradients(Integer first, Integer step, const float *inputs,
                                const float *output_gradients, int rows, int input_count, int output_count,
                                float *weight_gradients, float *bias_gradients) {
    Integer weights = (Integer)input_count * output_count;
    for (Integer i = first; i < weights + output_count; i += step) {
        int column = (int)(i % output_count);
        Integer k = i / output_count;
        float sum = 0;
        for (int row = 0; row < rows; row++) {
            float gradient = output_gradients[(Integer)row * output_count + column];
            sum += i < weights ? inputs[(Integer)row * input_count + k] * gradient : gradient;
        }
        if (i < weights) weight_gradients[i] = sum;
        else bias_gradients[column] = sum;
    }
}

/* D W', 0 where `masked` and the layer's input is not positive. */
__device__ void dense_below(Integer first, Integer step, const float *output_gradients, const float *weights,
                            const float *inputs, int rows, int input_count, int output_count, int masked,
                            float *below) {
    for (Integer i = first; i < (Integer)rows * input_count; i += step) {
        const float *gradient = output_gradients + i / input_count * output_count;
        const float *weight = weights + i % input_count * output_count;
        float sum = 0;
        for (int j = 0; j < output_count; j++) sum += gradient[j] * weight[j];
        below[i] = masked && !(inputs[i] > 0) ? 0 : sum;
    }
}

extern "C" __global__ void dqn_dense_forward(const float *inputs, const float *weights, const float *biases,
                                             int rows, int input_count, int output_count, int relu,
                                             float *outputs) {
    dense_forward((Integer)blockIdx.x * THREADS + threadIdx.x, (Integer)gridDim.x * THREADS, inputs, weights,
                  biases, rows, input_count, output_count, relu, outputs);
}

extern "C" __global__ void dqn_dense_gradients(const float *inputs, const float *output_gradients, int rows,
                                               int input_count, int output_count, float *weight_gradients,
                                               float *bias_gradients) {
    dense_gradients((Integer)blockIdx.x * THREADS + threadIdx.x, (Integer)gridDim.x * THREADS, inputs,
                    output_gradients, rows, input_count, output_count, weight_gradients, bias_gradients);
}

extern "C" __global__ void dqn_dense_below(const float *output_gradients, const float *weights,
                                           const float *inputs, int rows, int input_count, int output_count,
                                           int masked, float *below) {
    dense_below((Integer)blockIdx.x * THREADS + threadIdx.x, (Integer)gridDim.x * THREADS, output_gradients,
                weights, inputs, rows, input_count, output_count, masked, below);
}

/* Behind a convolution: adds the biases and takes relu in map[rows, row_width],
 * whose first filters * length numbers of a row are the convolution's; the rest
 * come from the observation, from its number `arrays` on. Block (x, y): columns
 * x THREADS .., row y. */
extern "C" __global__ void dqn_map(float *map, const float *biases, int filters, int length, int row_width,
                                   const float *observations, int size, int arrays) {
    int k = (int)(blockIdx.x * THREADS + threadIdx.x), mapped = filters * length;
    float *row = map + (Integer)blockIdx.y * row_width;
    if (k >= row_width) return;
    float value = k < mapped ? row[k] + biases[k / length]
                             : observations[(Integer)blockIdx.y * size + arrays + k - mapped];
    row[k] = k < mapped && !(value > 0) ? 0 : value;
}

/* Before a convolution's gradients: gradients[rows, row_width] become 0 where the
 * map is not positive, and bias_gradients[filters] their sums. Block f takes
 * filter f. */
extern "C" __global__ void dqn_map_gradient(float *gradients, const float *map, int rows, int length,
                                            int row_width, float *bias_gradients) {
    __shared__ float shared[THREADS];
    Integer count = (Integer)rows * length;
    float sum = 0;
    for (Integer k = threadIdx.x; k < count; k += THREADS) {
        Integer at = k / length * row_width + (Integer)blockIdx.x * length + k % length;
        float gradient = map[at] > 0 ? gradients[at] : 0;
        gradients[at] = gradient;
        sum += gradient;
    }
    shared[threadIdx.x] = sum;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if ((int)threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) bias_gradients[blockIdx.x] = shared[0];
}
