/* Device code of the DQN: all of an update except the matrix products and the
 * convolutions of the libraries, and kernels for those that they refuse; for dense
 * networks, a whole update in one block. Compiled by
 * NVRTC for the card at hand; plain kernels without includes.
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

/* A structure that is a kernel's argument stays in constant memory, from compute capability 7.0 on. */
#if !defined(__CUDACC__) || (defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 700)
#define GRID_CONSTANT
#else
#define GRID_CONSTANT __grid_constant__
#endif

enum { UPDATES, ADAM_STEPS, HELD, NEXT };
enum { MAX_PRIORITY, LOSS };
enum { MOST_THREADS = 1024, MOST_LAYERS = 9, TILE = 4, LANES = 32 };

/* A dense layer: offsets of its weights [inputs, outputs] and biases. */
struct Layer {
    Integer weights, biases;
    int inputs, outputs;
};

/* The device addresses of all arrays, and the settings: the same struct as UpdateCuda in
 * learner_cuda.c, field by field. */
struct Update {
    /* The replay: [capacity, ..]. owners is 0 between kernels. */
    float *observations, *next_observations, *rewards, *discounts;
    Byte *next_masks;
    int *taken, *owners;
    double *tree, *sums;
    Integer *counters;
    /* The parameters, and buffers of the same layout. */
    float *online, *target, *gradients, *first, *second;
    /* One batch. batch_rows is [2 batch, size]: the states, then the states that follow. */
    float *batch_rows, *batch_rewards, *batch_discounts, *weights, *errors;
    double *losses;
    Byte *batch_masks;
    int *batch_taken, *indices;
    /* Layer outputs of the online network [2 batch or batch, ..] and of the target
     * network on the states that follow [batch, ..]; derivatives by them. */
    float *outputs[MOST_LAYERS], *target_outputs[MOST_LAYERS];
    float *gradient, *next_gradient;
    Bits seed;
    double alpha, beta, priority_epsilon, huber;
    double learning_rate, beta1, beta2, adam_epsilon;
    int batch, online_rows, size, actions, dueling, double_q, capacity, width;
    int target_update, parameter_count, layer_count;
    Layer layers[MOST_LAYERS];
};

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

__device__ void sum_children(double *tree, int node) {
    tree[node] = tree[2 * node] + tree[2 * node + 1];
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

/* The largest value of a block, whose threads are a power of two. */
__device__ double block_maximum(double value) {
    __shared__ double shared[MOST_THREADS];
    shared[threadIdx.x] = value;
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half && shared[threadIdx.x + half] > shared[threadIdx.x])
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
extern "C" __global__ void dqn_store(const GRID_CONSTANT Update u, const float *staging, int rows) {
    int row_width = 2 * u.size + u.actions + 3, threads = (int)blockDim.x;
    int next = (int)u.counters[NEXT];
    for (int row = 0; row < rows; row++) {
        const float *from = staging + (Integer)row * row_width;
        Integer at = (next + row) % u.capacity;
        for (int k = threadIdx.x; k < row_width; k += threads) {
            int rest = k - 2 * u.size - u.actions;
            if (k < u.size) u.observations[at * u.size + k] = from[k];
            else if (k < 2 * u.size) u.next_observations[at * u.size + k - u.size] = from[k];
            else if (rest < 0) u.next_masks[at * u.actions + k - 2 * u.size] = from[k] != 0;
            else if (rest == 0) u.taken[at] = (int)from[k];
            else if (rest == 1) u.rewards[at] = from[k];
            else u.discounts[at] = from[k];
        }
    }
    double mass = pow(u.sums[MAX_PRIORITY], u.alpha);
    for (int row = threadIdx.x; row < rows; row += threads)
        u.tree[u.width + (next + row) % u.capacity] = mass;
    for (int level = 2; level <= u.width; level *= 2) {
        __syncthreads();
        for (int row = threadIdx.x; row < rows; row += threads) {
            int node = (u.width + (next + row) % u.capacity) / level;
            sum_children(u.tree, node);
        }
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    u.counters[NEXT] = (next + rows) % u.capacity;
    u.counters[HELD] = u.counters[HELD] + rows < u.capacity ? u.counters[HELD] + rows : u.capacity;
}

/* One index from each of `batch` equal parts of the mass, with its importance
 * weight (N P)^-beta over the largest of the batch. Work of one block. */
__device__ void draw(const Update &u) {
    int held = (int)u.counters[HELD], threads = (int)blockDim.x;
    double total = u.tree[1], largest = 0;
    for (int i = threadIdx.x; i < u.batch; i += threads) {
        double position = total * (i + uniform_at(u.seed, (Bits)u.counters[UPDATES], (Bits)i)) / u.batch;
        int index = find(u.tree, u.width, position);
        if (index >= held) index = held - 1;
        double weight = pow(held * (u.tree[u.width + index] / total), -u.beta);
        u.indices[i] = index;
        u.weights[i] = (float)weight;
        if (weight > largest) largest = weight;
    }
    largest = block_maximum(largest);
    for (int i = threadIdx.x; i < u.batch; i += threads) u.weights[i] = (float)(u.weights[i] / largest);
}

extern "C" __global__ void dqn_draw(const GRID_CONSTANT Update u) {
    draw(u);
}

/* Copies the transition that was drawn for a row of the batch; this is thread `lane` of
 * `lanes` that share the work. */
__device__ void gather(const Update &u, int row, int lane, int lanes) {
    Integer from = u.indices[row], states = (Integer)row * u.size;
    Integer following = (Integer)(u.batch + row) * u.size;
    for (int k = lane; k < u.size; k += lanes) {
        u.batch_rows[states + k] = u.observations[from * u.size + k];
        u.batch_rows[following + k] = u.next_observations[from * u.size + k];
    }
    for (int k = lane; k < u.actions; k += lanes)
        u.batch_masks[(Integer)row * u.actions + k] = u.next_masks[from * u.actions + k];
    if (lane != 0) return;
    u.batch_taken[row] = u.taken[from];
    u.batch_rewards[row] = u.rewards[from];
    u.batch_discounts[row] = u.discounts[from];
}

extern "C" __global__ void dqn_gather(const GRID_CONSTANT Update u) {
    gather(u, (int)blockIdx.x, (int)threadIdx.x, (int)blockDim.x);
}

/* The addend of a row's advantages: v - mean(a), or 0 without dueling. */
__device__ float value_base(const float *head, int actions, int dueling) {
    float sum = 0;
    if (!dueling) return 0;
    for (int a = 0; a < actions; a++) sum += head[1 + a];
    return head[0] - sum / (float)actions;
}

/* values[rows, actions] of the online network's heads; block i takes row i. */
extern "C" __global__ void dqn_values(const GRID_CONSTANT Update u, float *values) {
    __shared__ float base;
    const float *row = u.outputs[u.layer_count - 1] + (Integer)blockIdx.x * (u.actions + u.dueling);
    if (threadIdx.x == 0) base = value_base(row, u.actions, u.dueling);
    __syncthreads();
    for (int a = threadIdx.x; a < u.actions; a += (int)blockDim.x)
        values[(Integer)blockIdx.x * u.actions + a] = base + row[u.dueling + a];
}

/* The learning target and the loss of one row, by one thread. Fills errors[row]
 * (unweighted) and losses[row] (weighted, over the batch); returns the derivative
 * of the loss by the value of the action taken. */
__device__ float row_loss(const Update &u, int row) {
    Integer head_width = u.actions + u.dueling;
    int head = u.layer_count - 1, dueling = u.dueling, actions = u.actions;
    const float *here = u.outputs[head] + row * head_width;
    const float *there = u.target_outputs[head] + row * head_width;
    const float *choosing = u.double_q ? u.outputs[head] + (u.batch + row) * head_width : there;
    float goal = u.batch_rewards[row], discount = u.batch_discounts[row];
    if (discount != 0) {
        float base = value_base(choosing, actions, dueling), most = 0;
        int best = -1;
        for (int a = 0; a < actions; a++) {
            float value = base + choosing[dueling + a];
            if (u.batch_masks[(Integer)row * actions + a] && (best < 0 || value > most)) {
                best = a;
                most = value;
            }
        }
        if (best >= 0) goal += discount * (value_base(there, actions, dueling) + there[dueling + best]);
    }
    float value = value_base(here, actions, dueling) + here[dueling + u.batch_taken[row]];
    double delta = (double)goal - value;
    bool linear = u.huber > 0 && fabs(delta) > u.huber;
    double slope = linear ? copysign(u.huber, delta) : delta;
    double loss = linear ? u.huber * (fabs(delta) - u.huber / 2) : delta * delta / 2;
    u.errors[row] = (float)delta;
    u.losses[row] = u.weights[row] * loss / u.batch;
    return (float)(-u.weights[row] * slope / u.batch);
}

/* Output `k` of a row's derivative by the head's outputs: through the dueling head
 * the value takes the whole slope and every advantage loses its mean. */
__device__ float head_gradient(const Update &u, int row, int k, float slope) {
    if (!u.dueling) return k == u.batch_taken[row] ? slope : 0;
    if (k == 0) return slope;
    return (k - 1 == u.batch_taken[row] ? slope : 0) - slope / (float)u.actions;
}

/* Targets, loss and its derivative by the heads; block i takes row i. */
extern "C" __global__ void dqn_loss(const GRID_CONSTANT Update u) {
    __shared__ float slope;
    int row = (int)blockIdx.x, head_width = u.actions + u.dueling;
    if (threadIdx.x == 0) slope = row_loss(u, row);
    __syncthreads();
    for (int k = threadIdx.x; k < head_width; k += (int)blockDim.x)
        u.gradient[(Integer)row * head_width + k] = head_gradient(u, row, k, slope);
}

/* Adam (adam_cpu.c) over the parameters first, first + step, .., and every
 * target_update updates the copy into the target network. All threads of a block. */
__device__ void adam(const Update &u, int first, int step) {
    __shared__ float shared[2];
    if (threadIdx.x == 0) {
        double steps = (double)(u.counters[ADAM_STEPS] + 1);
        double correction1 = 1 - pow(u.beta1, steps), correction2 = sqrt(1 - pow(u.beta2, steps));
        shared[0] = (float)(u.learning_rate * correction2 / correction1);
        shared[1] = (float)(u.adam_epsilon * correction2);
    }
    __syncthreads();
    const float negligible = 1e-30f, rate = shared[0], epsilon = shared[1];
    float keep1 = (float)u.beta1, keep2 = (float)u.beta2;
    float rest1 = (float)(1 - u.beta1), rest2 = (float)(1 - u.beta2);
    bool copies = (u.counters[UPDATES] + 1) % u.target_update == 0;
    for (int i = first; i < u.parameter_count; i += step) {
        float gradient = u.gradients[i];
        float m = keep1 * u.first[i] + rest1 * gradient;
        float v = keep2 * u.second[i] + rest2 * gradient * gradient;
        m = fabsf(m) < negligible ? 0 : m;
        v = v < negligible ? 0 : v;
        float parameter = u.online[i] - rate * m / (sqrtf(v) + epsilon);
        u.first[i] = m;
        u.second[i] = v;
        u.online[i] = parameter;
        if (copies) u.target[i] = parameter;
    }
}

extern "C" __global__ void dqn_adam(const GRID_CONSTANT Update u) {
    adam(u, (int)(blockIdx.x * blockDim.x + threadIdx.x), (int)(gridDim.x * blockDim.x));
}

/* The raw priority of row i; an error that is not finite takes the largest one
 * that was known when its turn came. */
__device__ double raw_priority(const Update &u, int i, double largest) {
    double priority = fabs((double)u.errors[i]) + u.priority_epsilon;
    if (isfinite(priority)) return priority;
    for (int k = 0; k < i; k++) {
        double earlier = fabs((double)u.errors[k]) + u.priority_epsilon;
        if (isfinite(earlier) && earlier > largest) largest = earlier;
    }
    return largest;
}

/* The end of an update: new priorities from the errors (of equal indices the last
 * counts), the tree above them, the sum of losses, the counters. One block. */
__device__ void finish(const Update &u) {
    int threads = (int)blockDim.x;
    double before = u.sums[MAX_PRIORITY], largest = before;
    for (int i = threadIdx.x; i < u.batch; i += threads) atomicMax(&u.owners[u.indices[i]], i + 1);
    __syncthreads();
    for (int i = threadIdx.x; i < u.batch; i += threads) {
        double priority = raw_priority(u, i, before);
        if (priority > largest) largest = priority;
        if (u.owners[u.indices[i]] == i + 1) u.tree[u.width + u.indices[i]] = pow(priority, u.alpha);
    }
    largest = block_maximum(largest);
    for (int i = threadIdx.x; i < u.batch; i += threads) u.owners[u.indices[i]] = 0;
    for (int level = 2; level <= u.width; level *= 2) {
        __syncthreads();
        for (int i = threadIdx.x; i < u.batch; i += threads) {
            int node = (u.width + u.indices[i]) / level;
            sum_children(u.tree, node);
        }
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    double loss = 0;
    for (int i = 0; i < u.batch; i++) loss += u.losses[i];
    u.sums[LOSS] += loss;
    u.sums[MAX_PRIORITY] = largest;
    u.counters[UPDATES]++;
    u.counters[ADAM_STEPS]++;
}

extern "C" __global__ void dqn_finish(const GRID_CONSTANT Update u) {
    finish(u);
}

/* Every inner node of the tree, after all leaves were written. One block. */
extern "C" __global__ void dqn_build_tree(const GRID_CONSTANT Update u) {
    for (int first = u.width / 2; first >= 1; first /= 2) {
        for (int node = first + threadIdx.x; node < 2 * first; node += (int)blockDim.x)
            sum_children(u.tree, node);
        __syncthreads();
    }
}

/* The items of a thread: first, first + step, ... */
struct Share {
    Integer first, step;
};

__device__ Share share_of_grid() {
    return Share{(Integer)blockIdx.x * blockDim.x + threadIdx.x, (Integer)gridDim.x * blockDim.x};
}

__device__ Share share_of_block() {
    return Share{(Integer)threadIdx.x, (Integer)blockDim.x};
}

/* A product [rows, inputs] x [inputs, outputs]. */
struct DenseShape {
    int rows, input_count, output_count;
};

/* A dense layer, for shapes that cuBLASLt has no product for and for updates in one block. An item is TILE
 * results below one another: shared operands are read once, and the sums do not wait for each other. Each sum
 * has the order of a plain loop. */
__device__ void dense_forward(Share share, DenseShape shape, const float *inputs, const float *weights,
                              const float *biases, int relu, float *outputs) {
    int rows = shape.rows, input_count = shape.input_count, output_count = shape.output_count;
    Integer items = (Integer)(rows + TILE - 1) / TILE * output_count;
    for (Integer i = share.first; i < items; i += share.step) {
        int column = (int)(i % output_count), top = (int)(i / output_count) * TILE;
        const float *row[TILE];
        float sum[TILE];
        for (int t = 0; t < TILE; t++) {
            row[t] = inputs + (Integer)(top + t < rows ? top + t : rows - 1) * input_count;
            sum[t] = biases[column];
        }
        for (int k = 0; k < input_count; k++) {
            float weight = weights[(Integer)k * output_count + column];
            for (int t = 0; t < TILE; t++) sum[t] += row[t][k] * weight;
        }
        for (int t = 0; t < TILE && top + t < rows; t++)
            outputs[(Integer)(top + t) * output_count + column] = relu && !(sum[t] > 0) ? 0 : sum[t];
    }
}

/* dW = X' D, and after it db = sums of D over the rows. */
__device__ void dense_gradients(Share share, DenseShape shape, const float *inputs,
                                const float *output_gradients, float *weight_gradients,
                                float *bias_gradients) {
    int rows = shape.rows, input_count = shape.input_count, output_count = shape.output_count;
    Integer items = (Integer)(input_count + TILE - 1) / TILE * output_count;
    for (Integer i = share.first; i < items; i += share.step) {
        int column = (int)(i % output_count), top = (int)(i / output_count) * TILE;
        int left = input_count - top < TILE ? input_count - top : TILE;
        float sum[TILE] = {0};
        for (int row = 0; row < rows; row++) {
            const float *input = inputs + (Integer)row * input_count + top;
            float gradient = output_gradients[(Integer)row * output_count + column];
            for (int t = 0; t < TILE; t++) sum[t] += input[t < left ? t : 0] * gradient;
        }
        for (int t = 0; t < left; t++) weight_gradients[(Integer)(top + t) * output_count + column] = sum[t];
    }
    for (Integer column = share.first; column < output_count; column += share.step) {
        float sum = 0;
        for (int row = 0; row < rows; row++) sum += output_gradients[(Integer)row * output_count + column];
        bias_gradients[column] = sum;
    }
}

/* D W', 0 where `masked` and the layer's input is not positive. */
__device__ void dense_below(Share share, DenseShape shape, const float *output_gradients,
                            const float *weights, const float *inputs, int masked, float *below) {
    int rows = shape.rows, input_count = shape.input_count, output_count = shape.output_count;
    Integer items = (Integer)(rows + TILE - 1) / TILE * input_count;
    for (Integer i = share.first; i < items; i += share.step) {
        int column = (int)(i % input_count), top = (int)(i / input_count) * TILE;
        const float *weight = weights + (Integer)column * output_count, *gradient[TILE];
        float sum[TILE] = {0};
        for (int t = 0; t < TILE; t++)
            gradient[t] = output_gradients + (Integer)(top + t < rows ? top + t : rows - 1) * output_count;
        for (int j = 0; j < output_count; j++)
            for (int t = 0; t < TILE; t++) sum[t] += gradient[t][j] * weight[j];
        for (int t = 0; t < TILE && top + t < rows; t++) {
            Integer at = (Integer)(top + t) * input_count + column;
            below[at] = masked && !(inputs[at] > 0) ? 0 : sum[t];
        }
    }
}

extern "C" __global__ void dqn_dense_forward(const float *inputs, const float *weights, const float *biases,
                                             int rows, int input_count, int output_count, int relu,
                                             float *outputs) {
    DenseShape shape = {rows, input_count, output_count};
    dense_forward(share_of_grid(), shape, inputs, weights, biases, relu, outputs);
}

extern "C" __global__ void dqn_dense_gradients(const float *inputs, const float *output_gradients, int rows,
                                               int input_count, int output_count, float *weight_gradients,
                                               float *bias_gradients) {
    DenseShape shape = {rows, input_count, output_count};
    dense_gradients(share_of_grid(), shape, inputs, output_gradients, weight_gradients, bias_gradients);
}

extern "C" __global__ void dqn_dense_below(const float *output_gradients, const float *weights,
                                           const float *inputs, int rows, int input_count, int output_count,
                                           int masked, float *below) {
    DenseShape shape = {rows, input_count, output_count};
    dense_below(share_of_grid(), shape, output_gradients, weights, inputs, masked, below);
}

/* The heads of a dense network, by one block. */
__device__ void block_forward(const Update &u, const float *parameters, const float *rows, int count,
                              float *const *outputs) {
    for (int i = 0; i < u.layer_count; i++) {
        const Layer &layer = u.layers[i];
        DenseShape shape = {count, layer.inputs, layer.outputs};
        dense_forward(share_of_block(), shape, i == 0 ? rows : outputs[i - 1], parameters + layer.weights,
                      parameters + layer.biases, i < u.layer_count - 1, outputs[i]);
        __syncthreads();
    }
}

__device__ void block_backward(const Update &u) {
    float *current = u.gradient, *below = u.next_gradient;
    for (int i = u.layer_count - 1; i >= 0; i--) {
        const Layer &layer = u.layers[i];
        const float *inputs = i == 0 ? u.batch_rows : u.outputs[i - 1];
        DenseShape shape = {u.batch, layer.inputs, layer.outputs};
        dense_gradients(share_of_block(), shape, inputs, current, u.gradients + layer.weights,
                        u.gradients + layer.biases);
        if (i > 0) dense_below(share_of_block(), shape, current, u.online + layer.weights, inputs, 1, below);
        __syncthreads();
        float *swap = current;
        current = below;
        below = swap;
    }
}

/* `updates` whole updates of a dense network in one block: nothing is launched in
 * between, at the price of one multiprocessor's arithmetic. */
extern "C" __global__ void __launch_bounds__(MOST_THREADS)
    dqn_update(const GRID_CONSTANT Update u, int updates) {
    int head_width = u.actions + u.dueling, threads = (int)blockDim.x;
    for (int update = 0; update < updates; update++) {
        draw(u);
        __syncthreads();
        for (int row = (int)threadIdx.x / LANES; row < u.batch; row += threads / LANES)
            gather(u, row, (int)threadIdx.x % LANES, LANES);
        __syncthreads();
        block_forward(u, u.online, u.batch_rows, u.online_rows, u.outputs);
        block_forward(u, u.target, u.batch_rows + (Integer)u.batch * u.size, u.batch, u.target_outputs);
        for (int row = threadIdx.x; row < u.batch; row += threads) {
            float slope = row_loss(u, row);
            for (int k = 0; k < head_width; k++)
                u.gradient[(Integer)row * head_width + k] = head_gradient(u, row, k, slope);
        }
        __syncthreads();
        block_backward(u);
        adam(u, (int)threadIdx.x, threads);
        __syncthreads();
        finish(u);
        __syncthreads();
    }
}

/* A 1-D convolution's shape: NetworkFilter of network.h. */
struct Filter {
    int channels, length, filters, width, stride, output_length;
    int input_row, output_row; /* numbers from one row of the batch to the next */
};

/* Convolutions that cuDNN refuses. A thread gives one number; each sum has the order of a plain loop.
 * Forward, without biases: map[row, f, o] = sum over c, w of K[f, c, w] x[row, c, o stride + w]. */
extern "C" __global__ void dqn_filter_forward(const float *inputs, const float *kernel, int rows,
                                              const GRID_CONSTANT Filter s, float *map) {
    Integer i = (Integer)blockIdx.x * blockDim.x + threadIdx.x, count = (Integer)s.filters * s.output_length;
    if (i >= rows * count) return;
    int row = (int)(i / count), f = (int)(i % count) / s.output_length, o = (int)(i % s.output_length);
    const float *input = inputs + (Integer)row * s.input_row + (Integer)o * s.stride;
    const float *weight = kernel + (Integer)f * s.channels * s.width;
    float sum = 0;
    for (int c = 0; c < s.channels; c++)
        for (int w = 0; w < s.width; w++) sum += weight[c * s.width + w] * input[(Integer)c * s.length + w];
    map[(Integer)row * s.output_row + i % count] = sum;
}

/* dK[f, c, w] = sum over rows and o of D[row, f, o] x[row, c, o stride + w]. */
extern "C" __global__ void dqn_filter_gradients(const float *inputs, const float *output_gradients, int rows,
                                                const GRID_CONSTANT Filter s, float *kernel_gradients) {
    Integer i = (Integer)blockIdx.x * blockDim.x + threadIdx.x, taps = (Integer)s.channels * s.width;
    if (i >= s.filters * taps) return;
    int f = (int)(i / taps), c = (int)(i % taps) / s.width, w = (int)(i % s.width);
    float sum = 0;
    for (int row = 0; row < rows; row++) {
        const float *input = inputs + (Integer)row * s.input_row + (Integer)c * s.length + w;
        const float *gradient = output_gradients + (Integer)row * s.output_row + (Integer)f * s.output_length;
        for (int o = 0; o < s.output_length; o++) sum += gradient[o] * input[(Integer)o * s.stride];
    }
    kernel_gradients[i] = sum;
}

/* dX[row, c, x] = sum over f and the w with x = o stride + w of K[f, c, w] D[row, f, o]. */
extern "C" __global__ void dqn_filter_below(const float *output_gradients, const float *kernel, int rows,
                                            const GRID_CONSTANT Filter s, float *below) {
    Integer i = (Integer)blockIdx.x * blockDim.x + threadIdx.x, count = (Integer)s.channels * s.length;
    if (i >= rows * count) return;
    int row = (int)(i / count), c = (int)(i % count) / s.length, x = (int)(i % s.length);
    float sum = 0;
    for (int f = 0; f < s.filters; f++) {
        const float *gradient = output_gradients + (Integer)row * s.output_row + (Integer)f * s.output_length;
        const float *weight = kernel + ((Integer)f * s.channels + c) * s.width;
        for (int w = x % s.stride; w < s.width && w <= x; w += s.stride)
            if ((x - w) / s.stride < s.output_length) sum += weight[w] * gradient[(x - w) / s.stride];
    }
    below[(Integer)row * s.input_row + i % count] = sum;
}

/* After a convolution: adds the biases and takes relu in map[rows, row_width],
 * whose first filters * length numbers of a row are the convolution's; the rest
 * come from the observation, from its number `arrays` on. Block (x, y): its
 * threads' columns, row y. */
extern "C" __global__ void dqn_map(float *map, const float *biases, int filters, int length, int row_width,
                                   const float *observations, int size, int arrays) {
    int k = (int)(blockIdx.x * blockDim.x + threadIdx.x), mapped = filters * length;
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
    __shared__ float shared[MOST_THREADS];
    Integer count = (Integer)rows * length;
    float sum = 0;
    for (Integer k = threadIdx.x; k < count; k += blockDim.x) {
        Integer at = k / length * row_width + (Integer)blockIdx.x * length + k % length;
        float gradient = map[at] > 0 ? gradients[at] : 0;
        gradients[at] = gradient;
        sum += gradient;
    }
    shared[threadIdx.x] = sum;
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) bias_gradients[blockIdx.x] = shared[0];
}
