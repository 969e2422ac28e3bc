// A stand-in for libcuda.so.1 and NVRTC for tests: one GPU that computes nothing, to compare plans and launches with the parameters
// that kernels declare. Parameters are read from the cubin or, for kernels that are not in the bundle, from the source text. Launches
// that a GPU would refuse are refused.
// Allocations up to a size are host memory: data copied there can be read back.
//   FAKE_CUDA_COMPUTE=80        its compute capability
//   FAKE_CUDA_INIT=100          result of cuInit, for example 100 without a GPU
//   FAKE_CUDA_VERSION=11080     maximum CUDA version of the driver, default 12.9
//   FAKE_CUDA_GPUS=2            number of GPUs, default 1; CUDA_VISIBLE_DEVICES hides them by number or UUID as in the driver
//   FAKE_CUDA_FILLS=1           memset fills memory; otherwise only allocations without memory record the value
//   FAKE_CUDA_WRONG=1           one bit of data read from GPU 1 is flipped after a kernel of an op
//   FAKE_CUDA_SLOW=1            times on GPU 1 are doubled
//   FAKE_CUDA_BAD_MEMORY=1      a word of GPU 1's memory loses a bit
//   FAKE_CUDA_ENDS=1            a process that sees only GPU 1 ends when it launches its first kernel
//   FAKE_CUDA_TAKEN=1           another process uses GPU 1 in exclusive compute mode
//   FAKE_CUDA_MIG=1             the GPU that CUDA_VISIBLE_DEVICES names by UUID is a MIG partition
//   FAKE_CUDA_NO_PEERS=1        no peer access between GPUs
//   FAKE_CUDA_SLOW_COPIES=1     copies to GPU 1 take twice as long
//   FAKE_CUDA_WRONG_COPIES=1    copies to GPU 1 lose a bit
//   FAKE_CUDA_ENDS_COPIES=1     a process that copies to GPU 1 ends
//   FAKE_CUDA_FREE=BYTES        free memory
//   FAKE_CUDA_NO_COPIES=1       copies do nothing, so that only host work takes time
//   FAKE_CUDA_LAUNCHES=FILE     names of launched kernels are appended to FILE, and `compiled OPTIONS` for each compilation
//   FAKE_CUDA_ARGUMENTS=FILE    the same with a hash of each launch's shape and arguments, and destroyed and released objects
//   FAKE_CUDA_COPIES=FILE       copies on a GPU are appended to FILE: thread, destination, number of bytes, and for 4 bytes their value;
//                               also opened memory of other processes
//   FAKE_CUDA_PAUSE=MICROS      duration of changing a limit and of compiling, so that threads overlap there
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, MOST_PARAMETERS = 64 };
// A function has the limits that were set last, by any caller.
typedef struct Function {
    char *name;
    int count;
    size_t offsets[MOST_PARAMETERS], sizes[MOST_PARAMETERS];
    unsigned most_shared, most_cluster;
    void *context;
    struct Function *next;
} Function;
typedef struct { char *image; Function *functions; void *context; } Module;
typedef struct { unsigned id, pad, value[16]; } LaunchAttribute;
typedef struct { unsigned grid[3], block[3], shared_bytes; void *stream; const LaunchAttribute *attributes; unsigned count; } LaunchConfig;
static char anything;
static int launched;
static pthread_mutex_t modules = PTHREAD_MUTEX_INITIALIZER;

static int compute(void) { return atoi(getenv("FAKE_CUDA_COMPUTE")); }
static unsigned most_shared(void) { return (compute() == 80 ? 163 : 227) << 10; }

static void pause_here(void) {
    char *micros = getenv("FAKE_CUDA_PAUSE");
    if (micros) usleep(atoi(micros));
}

// Appends one line at a time, from any thread.
static int append_to(const char *variable, const char *line) {
    const char *name = getenv(variable);
    if (!name) return SUCCESS;
    FILE *file = fopen(name, "a");
    if (!file) return INVALID_VALUE;
    fprintf(file, "%s\n", line);
    return fclose(file) ? INVALID_VALUE : SUCCESS;
}
static int append(const char *line) { return append_to("FAKE_CUDA_LAUNCHES", line); }

static uint64_t mixed(uint64_t hash, const void *from, size_t bytes) {
    for (const unsigned char *at = from, *end = at + bytes; at < end; at++) hash = (hash ^ *at) * 0x100000001b3;
    return hash;
}

// ---- Functions that only succeed.
#define SUCCEEDS(name) int name(void) { return SUCCESS; }
SUCCEEDS(cuMemFreeHost) SUCCEEDS(cuMemHostRegister_v2) SUCCEEDS(cuMemHostUnregister)
SUCCEEDS(cuStreamSynchronize)
SUCCEEDS(cuThreadExchangeStreamCaptureMode)
SUCCEEDS(cuStreamWaitEvent) SUCCEEDS(cuStreamBeginCapture_v2) SUCCEEDS(cuStreamEndCapture)
SUCCEEDS(cuGraphInstantiateWithFlags) SUCCEEDS(cuGraphLaunch) SUCCEEDS(cuGraphUpload) SUCCEEDS(cuGraphDestroy) SUCCEEDS(cuGraphExecDestroy)
SUCCEEDS(cuEventDestroy_v2) SUCCEEDS(cuEventRecord) SUCCEEDS(cuEventSynchronize) SUCCEEDS(cuEventQuery)
SUCCEEDS(cuModuleUnload)

int cuStreamIsCapturing(void *stream, int *status) { (void)stream; *status = 0; return SUCCESS; }

// ---- Memory shared between processes, with FAKE_CUDA_SHARED; here within one process, which CUDA would refuse.
typedef struct {
    uint64_t words[8];
} Shared;

int cuIpcGetMemHandle(Shared *handle, uint64_t address) {
    if (!getenv("FAKE_CUDA_SHARED")) return 801;
    *handle = (Shared){{address, 1, 2, 3, 4, 5, 6, ~address}};
    return SUCCESS;
}

int cuIpcOpenMemHandle_v2(uint64_t *address, Shared handle, unsigned flags) {
    *address = handle.words[0];
    char line[64];
    snprintf(line, sizeof line, "opened %llu", (unsigned long long)*address);
    if (append_to("FAKE_CUDA_COPIES", line)) return INVALID_VALUE;
    return flags == 1 && handle.words[7] == ~*address ? SUCCESS : INVALID_VALUE;
}

int cuIpcCloseMemHandle(uint64_t address) { return address ? SUCCESS : INVALID_VALUE; }

#define MAKES(name) int name(void **handle) { *handle = &anything; return SUCCESS; }
MAKES(cuEventCreate)

// ---- The GPU.
static unsigned long long number(const char *name, unsigned long long otherwise) {
    char *value = getenv(name);
    return value ? strtoull(value, NULL, 10) : otherwise;
}

int cuInit(void) { return number("FAKE_CUDA_INIT", SUCCESS); }
int cuDriverGetVersion(int *version) { *version = number("FAKE_CUDA_VERSION", 12090); return SUCCESS; }
int cuGetErrorName(int code, const char **text) {
    *text = code == INVALID_VALUE ? "INVALID_VALUE" : code == INVALID_CONTEXT ? "INVALID_CONTEXT" : code == INVALID_HANDLE ? "INVALID_HANDLE" : "?";
    return SUCCESS;
}
int cuGetErrorString(int code, const char **text) { return cuGetErrorName(code, text); }

// The last digit of a UUID is the GPU's number. The list ends at the first entry that names no GPU.
static void uuid_of(int gpu, unsigned char *bytes) { memset(bytes, 0, 16); bytes[15] = gpu; }
static int seen(int *gpus) {
    int count = 0, all = number("FAKE_CUDA_GPUS", 1);
    char *list = getenv("CUDA_VISIBLE_DEVICES");
    if (!list) {
        for (; count < all; count++) gpus[count] = count;
        return count;
    }
    for (char *at = list; *at && count < all;) {
        size_t length = strcspn(at, ",");
        int uuid = !strncmp(at, "GPU-", 4) || !strncmp(at, "MIG-", 4), gpu = uuid ? at[length - 1] - '0' : atoi(at);
        if (length == 0 || gpu < 0 || gpu >= all) break;
        gpus[count++] = gpu;
        at += length + (at[length] == ',');
    }
    return count;
}
// Whether the GPU that a variable names is the first of this process.
static int has(const char *variable) {
    int gpus[64], count = seen(gpus);
    return getenv(variable) && count && gpus[0] == (int)number(variable, 0);
}

int cuDeviceGetCount(int *count) { int gpus[64]; *count = seen(gpus); return SUCCESS; }
int cuDeviceGet(int *device, int number) { *device = number; return SUCCESS; }
int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    int gpus[64];
    if (device >= seen(gpus)) return INVALID_VALUE;
    uuid_of(gpus[device], uuid);
    return SUCCESS;
}
static int slow_copies;
int cuEventElapsedTime(float *millis) { *millis = has("FAKE_CUDA_SLOW") || slow_copies ? 2 : 1; return SUCCESS; }
int cuDeviceGetName(char *name, int size, int device) {
    (void)device;
    snprintf(name, size, getenv("FAKE_CUDA_MIG") ? "stand-in MIG 1g.10gb" : "stand-in");
    return SUCCESS;
}
int cuDeviceTotalMem_v2(size_t *bytes) { *bytes = 1ull << 40; return SUCCESS; }
int cuMemGetInfo_v2(size_t *free, size_t *total) {
    *total = 1ull << 40;
    *free = number("FAKE_CUDA_FREE", *total);
    return SUCCESS;
}

int cuDeviceGetAttribute(int *value, int attribute) {
    switch (attribute) {
        case 16: *value = 132; break;
        case 38: *value = 50 << 20; break;
        case 75: *value = compute() / 10; break;
        case 76: *value = compute() % 10; break;
        case 97: *value = most_shared(); break;
        default: *value = 0;
    }
    return SUCCESS;
}

// ---- Contexts: each thread has a stack of them; functions that need one refuse a thread without.
enum { MOST_GPUS = 8 };
static char contexts[MOST_GPUS];
static __thread void *stack[16];
static __thread int depth;

int cuDevicePrimaryCtxRetain(void **context, int device) {
    int gpus[64];
    seen(gpus);
    if (getenv("FAKE_CUDA_TAKEN") && gpus[device] == (int)number("FAKE_CUDA_TAKEN", 0)) return 46;
    *context = contexts + device;
    return SUCCESS;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
    char line[32];
    snprintf(line, sizeof line, "released GPU %d", device);
    return append_to("FAKE_CUDA_ARGUMENTS", line);
}
int cuCtxGetCurrent(void **context) { *context = depth ? stack[depth - 1] : NULL; return SUCCESS; }
int cuCtxSetCurrent(void *context) {
    if (!depth) depth = 1;
    stack[depth - 1] = context;
    return SUCCESS;
}
int cuCtxPushCurrent_v2(void *context) { stack[depth++] = context; return SUCCESS; }
int cuCtxPopCurrent_v2(void **context) {
    if (!depth) return INVALID_CONTEXT;
    *context = stack[--depth];
    return SUCCESS;
}
static void *current(void) { return depth ? stack[depth - 1] : NULL; }

// A stream belongs to its context; a stream that was not created here is the legacy stream of every context.
int cuStreamCreate(void **stream) { *stream = malloc(sizeof(void *)); *(void **)*stream = current(); return SUCCESS; }
int cuStreamDestroy_v2(void **stream) { free(stream); return append_to("FAKE_CUDA_ARGUMENTS", "destroyed a stream"); }

// Allocations larger than a small model's weights have only an address without memory, and the pattern of the last fill.
enum { MOST_REAL = 16 << 20, MOST_FILLS = 64 };
#define UNREAL (1ull << 60)
static struct { uint64_t address; unsigned pattern; } fills[MOST_FILLS];
static unsigned *fill_of(uint64_t address) {
    static unsigned next;
    for (unsigned i = 0; i < MOST_FILLS; i++) if (fills[i].address == address) return &fills[i].pattern;
    unsigned i = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED) % MOST_FILLS;
    fills[i].address = address;
    return &fills[i].pattern;
}
static void filled(uint32_t *to, unsigned pattern, size_t words) { for (size_t i = 0; i < words; i++) to[i] = pattern; }
int cuMemsetD32Async(uint64_t address, unsigned pattern, size_t count) {
    if (address >= UNREAL) *fill_of(address) = pattern;
    else if (getenv("FAKE_CUDA_FILLS")) filled((void *)address, pattern, count);
    return SUCCESS;
}
int cuMemsetD16Async(uint64_t address, unsigned short pattern, size_t count) {
    if (count % 2 && address < UNREAL && getenv("FAKE_CUDA_FILLS")) ((unsigned short *)address)[count - 1] = pattern;
    return cuMemsetD32Async(address, pattern * 0x10001u, count / 2);
}

int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
    static uint64_t next = UNREAL;
    size_t whole = (bytes + 511) / 512 * 512;
    if (bytes > number("FAKE_CUDA_MOST_REAL", MOST_REAL)) {
        *address = __atomic_fetch_add(&next, whole, __ATOMIC_RELAXED);
        return SUCCESS;
    }
    void *memory = aligned_alloc(512, whole);
    if (!memory) return INVALID_VALUE;
    *address = (uint64_t)memset(memory, 0, whole);
    return SUCCESS;
}

int cuMemFree_v2(uint64_t address) {
    if (address < UNREAL) free((void *)address);
    return SUCCESS;
}

static int copied(uint64_t to, uint64_t from, size_t bytes) {
    if (getenv("FAKE_CUDA_NO_COPIES")) return SUCCESS;
    if (to < UNREAL && from < UNREAL) memcpy((void *)to, (void *)from, bytes);
    else if (to < UNREAL) filled((void *)to, *fill_of(from), bytes / 4);
    else if (from >= UNREAL) *fill_of(to) = *fill_of(from);
    return SUCCESS;
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes) { return copied(to, (uint64_t)from, bytes); }
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes) {
    int code = copied((uint64_t)to, from, bytes);
    if (from < UNREAL && launched && bytes && has("FAKE_CUDA_WRONG")) *(char *)to ^= 1;
    return code;
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes) {
    char line[128];
    unsigned number = bytes == 4 && from < UNREAL ? *(unsigned *)from : 0;
    snprintf(line, sizeof line, "%d %llu %zu %u", gettid(), (unsigned long long)to, bytes, number);
    return append_to("FAKE_CUDA_COPIES", line) ? INVALID_VALUE : copied(to, from, bytes);
}

// ---- Copies between GPUs.
int cuDeviceCanAccessPeer(int *can, int one, int other) { *can = one != other && !getenv("FAKE_CUDA_NO_PEERS"); return SUCCESS; }
int cuCtxEnablePeerAccess(void *context, unsigned flags) {
    static char *reached[MOST_GPUS][MOST_GPUS];
    int here = (char *)current() - contexts, there = (char *)context - contexts;
    if (!current() || flags || here == there || getenv("FAKE_CUDA_NO_PEERS")) return INVALID_VALUE;
    if (reached[here][there]) return 704;
    reached[here][there] = context;
    return SUCCESS;
}
int cuMemcpyPeerAsync(uint64_t to, void *there, uint64_t from, void *here, size_t bytes, void **stream) {
    if (here != current() || there == here || (stream && *stream != here)) return INVALID_CONTEXT;
    int gpus[64];
    seen(gpus);
    int gpu = gpus[(char *)there - contexts];
    if (getenv("FAKE_CUDA_ENDS_COPIES") && gpu == (int)number("FAKE_CUDA_ENDS_COPIES", 0)) abort();
    slow_copies = getenv("FAKE_CUDA_SLOW_COPIES") && gpu == (int)number("FAKE_CUDA_SLOW_COPIES", 0);
    int code = copied(to, from, bytes);
    if (to < UNREAL && getenv("FAKE_CUDA_WRONG_COPIES") && gpu == (int)number("FAKE_CUDA_WRONG_COPIES", 0)) *(char *)to ^= 4;
    return code;
}

// TMA descriptors: the address, and a hash of everything else.
int cuTensorMapEncodeTiled(
    uint64_t *map, int element, unsigned rank, uint64_t address, const uint64_t *sizes, const uint64_t *strides,
    const unsigned *tile, const unsigned *steps, int interleave, int swizzle, int promotion, int outside
) {
    int numbers[] = {element, (int)rank, interleave, swizzle, promotion, outside};
    uint64_t hash = mixed(mixed(1, numbers, sizeof numbers), sizes, rank * sizeof *sizes);
    hash = mixed(mixed(hash, strides, (rank - 1) * sizeof *strides), tile, rank * sizeof *tile);
    memset(map, 0, 128);
    map[0] = address;
    map[1] = mixed(hash, steps, rank * sizeof *steps);
    return SUCCESS;
}
int cuTensorMapReplaceAddress(uint64_t *map, uint64_t address) { map[0] = address; return SUCCESS; }

int cuMemHostAlloc(void **memory, size_t bytes) { *memory = calloc(1, bytes); return SUCCESS; }

// ---- Kernels.
static const char TEXT[] = "\177ELF of text";  // the first bytes of a "cubin" of the compiler below

static uint64_t word(const char *at, int bytes) {
    uint64_t value = 0;
    memcpy(&value, at, bytes);
    return value;
}

static size_t cubin_bytes(const char *image) {
    size_t headers = word(image + 40, 8), count = word(image + 60, 2), end = headers + count * 64;
    for (size_t i = 0; i < count; i++) {
        const char *section = image + headers + i * 64;
        size_t last = word(section + 24, 8) + word(section + 32, 8);
        if (word(section + 4, 4) != 8 && last > end) end = last;  // 8 (SHT_NOBITS): no bytes in the file
    }
    return end;
}

int cuModuleLoadData(Module **made, const char *image) {
    size_t bytes = strncmp(image, TEXT, sizeof TEXT - 1) ? cubin_bytes(image) : strlen(image) + 1;
    if (!current()) return INVALID_CONTEXT;
    Module *module = calloc(1, sizeof *module);
    module->context = current();
    module->image = memcpy(malloc(bytes), image, bytes);
    *made = module;
    return SUCCESS;
}

// From the section `.nv.info.KERNEL`: records of format, attribute and size; attribute 0x17 is a parameter.
static int read_cubin(Function *function, const char *image) {
    size_t headers = word(image + 40, 8), count = word(image + 60, 2), names = word(image + 62, 2);
    const char *strings = image + word(image + headers + names * 64 + 24, 8);
    for (size_t i = 0; i < count; i++) {
        const char *section = image + headers + i * 64, *name = strings + word(section, 4);
        if (strncmp(name, ".nv.info.", 9) || strcmp(name + 9, function->name)) continue;
        const char *at = image + word(section + 24, 8), *end = at + word(section + 32, 8);
        while (at < end) {
            int format = at[0], attribute = at[1], size = format == 4 ? word(at + 2, 2) : 0;
            at += 4;
            if (attribute == 0x17) {
                unsigned ordinal = word(at + 4, 2);
                if (ordinal >= MOST_PARAMETERS) return INVALID_VALUE;
                function->offsets[ordinal] = word(at + 6, 2);
                function->sizes[ordinal] = word(at + 8, 4) >> 18 & 0x3fff;
                if ((int)ordinal >= function->count) function->count = ordinal + 1;
            }
            at += size;
        }
        return SUCCESS;
    }
    return INVALID_VALUE;
}

// From `KERNEL(TYPE NAME, ..) {` after `extern "C"`: pointers, 64-bit integers, TMA descriptors, and words, each aligned to
// its size, descriptors to half of it.
static int read_text(Function *function, char *text) {
    char opening[128], *from = strstr(text, "extern \"C\"");
    snprintf(opening, sizeof opening, " %s(", function->name);
    from = from ? strstr(from, opening) : NULL;
    if (!from) return INVALID_VALUE;
    from += strlen(opening);
    char *list = strndup(from, strchr(from, ')') - from), *rest = list, *one;
    size_t end = 0;
    while ((one = strsep(&rest, ",")) && function->count < MOST_PARAMETERS) {
        int wide = strchr(one, '*') || strstr(one, "i64 ") || strstr(one, "u64 ") || strstr(one, "double ");
        size_t size = strstr(one, "TensorMap ") ? 128 : wide ? 8 : 4, alignment = size == 128 ? 64 : size;
        function->offsets[function->count] = (end + alignment - 1) / alignment * alignment;
        end = function->offsets[function->count] + size;
        function->sizes[function->count++] = size;
    }
    free(list);
    return SUCCESS;
}

// The same function at each call, as in the driver.
int cuModuleGetFunction(Function **found, Module *module, const char *name) {
    int is_text = !strncmp(module->image, TEXT, sizeof TEXT - 1), code = SUCCESS;
    pthread_mutex_lock(&modules);
    Function *function = module->functions;
    while (function && strcmp(function->name, name)) function = function->next;
    if (!function) {
        function = calloc(1, sizeof *function);
        function->name = strdup(name);
        function->context = module->context;
        function->most_shared = 48 << 10;
        function->most_cluster = 8;
        function->next = module->functions;
        module->functions = function;
        code = is_text ? read_text(function, module->image) : read_cubin(function, module->image);
    }
    pthread_mutex_unlock(&modules);
    *found = function;
    return code;
}

int cuFuncGetParamInfo(Function *function, size_t index, size_t *offset, size_t *size) {
    if ((int)index >= function->count) return INVALID_VALUE;
    *offset = function->offsets[index];
    *size = function->sizes[index];
    return SUCCESS;
}

int cuFuncGetAttribute(int *value, int attribute) { *value = attribute == 0 ? 1024 : 0; return SUCCESS; }

int cuFuncSetAttribute(Function *function, int attribute, int value) {
    if (attribute == 8) {
        if ((unsigned)value > most_shared()) return INVALID_VALUE;
        __atomic_store_n(&function->most_shared, value, __ATOMIC_SEQ_CST);
    }
    if (attribute == 14) function->most_cluster = value ? 16 : 8;
    pause_here();
    return SUCCESS;
}

int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks) { *blocks = 1; return SUCCESS; }

// Emulates `memory_test` on allocations with memory. A bad word loses its highest bit when it is written.
static void test_memory(void **arguments) {
    uint64_t *words = *(uint64_t **)arguments[0], *found = *(uint64_t **)arguments[1];
    int64_t count = *(int64_t *)arguments[2], pattern = *(int64_t *)arguments[3];
    int addressed = *(int *)arguments[4], check = *(int *)arguments[5];
    if ((uint64_t)words >= UNREAL) return;
    for (int64_t i = 0; i < count; i++) {
        uint64_t want = (uint64_t)pattern ^ (addressed ? (uint64_t)(words + i) : 0);
        if (!check) words[i] = i == 4711 && has("FAKE_CUDA_BAD_MEMORY") ? want & ~(1ull << 63) : want;
        else if (words[i] != want) {
            uint64_t error[] = {(uint64_t)(words + i), want, words[i]};
            if (found[0] < 16) memcpy(found + 1 + 3 * found[0], error, sizeof error);
            found[0]++;
        }
    }
}

int cuLaunchKernelEx(const LaunchConfig *launch, Function *function, void **arguments) {
    const unsigned *grid = launch->grid, *block = launch->block;
    if (!current()) return INVALID_CONTEXT;
    if (function->context != current() || (launch->stream && *(void **)launch->stream != current())) return INVALID_HANDLE;
    unsigned threads = block[0] * block[1] * block[2];
    if (!grid[0] || !grid[1] || !grid[2] || grid[1] > 65535 || grid[2] > 65535) return INVALID_VALUE;
    if (!threads || threads > 1024) return INVALID_VALUE;
    if (launch->shared_bytes > __atomic_load_n(&function->most_shared, __ATOMIC_SEQ_CST)) return INVALID_VALUE;
    for (unsigned i = 0; i < launch->count; i++) {
        const LaunchAttribute *one = launch->attributes + i;
        if (one->id == 4 && one->value[0] * one->value[1] * one->value[2] > function->most_cluster) return INVALID_VALUE;
    }
    if (getenv("FAKE_CUDA_ARGUMENTS")) {
        uint64_t hash = mixed(1, launch, sizeof launch->grid + sizeof launch->block + sizeof launch->shared_bytes);
        for (int i = 0; i < function->count; i++) hash = mixed(hash, arguments[i], function->sizes[i]);
        char line[160];
        snprintf(line, sizeof line, "%s %016llx", function->name, (unsigned long long)hash);
        if (append_to("FAKE_CUDA_ARGUMENTS", line)) return INVALID_VALUE;
    }
    if (has("FAKE_CUDA_ENDS")) abort();
    launched = strcmp(function->name, "memory_test") != 0;
    if (!launched) test_memory(arguments);
    return append(function->name);
}

// ---- The compiler: its "cubin" is the source.
int nvrtcVersion(int *major, int *minor) { *major = 12; *minor = 9; return SUCCESS; }
int nvrtcCreateProgram(char **program, const char *source) { *program = strdup(source); return SUCCESS; }
int nvrtcDestroyProgram(char **program) { free(*program); return SUCCESS; }
int nvrtcCompileProgram(char *program, int count, const char **options) {
    (void)program;
    char line[1024] = "compiled";
    for (int i = 0; i < count; i++) snprintf(line + strlen(line), sizeof line - strlen(line), " %s", options[i]);
    pause_here();
    return append(line);
}
int nvrtcGetProgramLogSize(char *program, size_t *bytes) { (void)program; *bytes = 0; return SUCCESS; }
int nvrtcGetProgramLog(void) { return SUCCESS; }
int nvrtcGetCUBINSize(char *program, size_t *bytes) { *bytes = sizeof TEXT + strlen(program); return SUCCESS; }
int nvrtcGetCUBIN(char *program, char *to) { sprintf(to, "%s%s", TEXT, program); return SUCCESS; }
