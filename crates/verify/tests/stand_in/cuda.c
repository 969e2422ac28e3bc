// A libcuda.so.1 and an NVRTC for tests: one GPU that computes nothing, so that plans and launches can be held against what
// kernels take. Parameters come from a cubin's own record of them or, for what the bundle does not hold, from the source's
// text. A launch that a GPU would refuse is refused here too.
//   FAKE_CUDA_COMPUTE=80        its compute capability
//   FAKE_CUDA_LAUNCHES=FILE     names of launched kernels are appended to it
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, MOST_PARAMETERS = 64 };
typedef struct { char *name; int count; size_t sizes[MOST_PARAMETERS]; } Function;
typedef struct { unsigned grid[3], block[3], shared_bytes; } LaunchConfig;
static char anything;

static int compute(void) { return atoi(getenv("FAKE_CUDA_COMPUTE")); }
static unsigned most_shared(void) { return (compute() == 80 ? 163 : 227) << 10; }

// ---- What only has to succeed.
#define SUCCEEDS(name) int name(void) { return SUCCESS; }
SUCCEEDS(cuInit) SUCCEEDS(cuDevicePrimaryCtxRelease_v2) SUCCEEDS(cuCtxSetCurrent) SUCCEEDS(cuMemFree_v2)
SUCCEEDS(cuMemFreeHost) SUCCEEDS(cuMemcpyHtoDAsync_v2) SUCCEEDS(cuMemcpyDtoHAsync_v2) SUCCEEDS(cuMemcpyDtoDAsync_v2)
SUCCEEDS(cuMemsetD16Async) SUCCEEDS(cuMemsetD32Async) SUCCEEDS(cuStreamDestroy_v2) SUCCEEDS(cuStreamSynchronize)
SUCCEEDS(cuStreamWaitEvent) SUCCEEDS(cuStreamBeginCapture_v2) SUCCEEDS(cuStreamEndCapture)
SUCCEEDS(cuGraphInstantiateWithFlags) SUCCEEDS(cuGraphLaunch) SUCCEEDS(cuGraphDestroy) SUCCEEDS(cuGraphExecDestroy)
SUCCEEDS(cuEventDestroy_v2) SUCCEEDS(cuEventRecord) SUCCEEDS(cuEventSynchronize) SUCCEEDS(cuEventElapsedTime)
SUCCEEDS(cuModuleUnload) SUCCEEDS(cuTensorMapEncodeTiled)

#define MAKES(name) int name(void **handle) { *handle = &anything; return SUCCESS; }
MAKES(cuDevicePrimaryCtxRetain) MAKES(cuStreamCreate) MAKES(cuEventCreate)

// ---- The GPU.
int cuDriverGetVersion(int *version) { *version = 12090; return SUCCESS; }
int cuGetErrorName(int code, const char **text) { *text = code == INVALID_VALUE ? "INVALID_VALUE" : "?"; return SUCCESS; }
int cuGetErrorString(int code, const char **text) { return cuGetErrorName(code, text); }
int cuDeviceGetCount(int *count) { *count = 1; return SUCCESS; }
int cuDeviceGet(int *device, int number) { *device = number; return SUCCESS; }
int cuDeviceGetName(char *name, int size, int device) { (void)device; snprintf(name, size, "stand-in"); return SUCCESS; }
int cuDeviceTotalMem_v2(size_t *bytes) { *bytes = 1ull << 40; return SUCCESS; }
int cuMemGetInfo_v2(size_t *free, size_t *total) { *free = *total = 1ull << 40; return SUCCESS; }

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

int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
    static uint64_t next = 1ull << 32;
    *address = next;
    next += (bytes + 511) / 512 * 512;
    return SUCCESS;
}

int cuMemHostAlloc(void **memory, size_t bytes) { *memory = calloc(1, bytes); return SUCCESS; }

// ---- Kernels.
static const char TEXT[] = "\177ELF of text";  // how a "cubin" of the compiler below begins

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
        if (word(section + 4, 4) != 8 && last > end) end = last;  // 8: takes no room in the file
    }
    return end;
}

int cuModuleLoadData(void **module, const char *image) {
    size_t bytes = strncmp(image, TEXT, sizeof TEXT - 1) ? cubin_bytes(image) : strlen(image) + 1;
    *module = memcpy(malloc(bytes), image, bytes);
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
                function->sizes[ordinal] = word(at + 8, 4) >> 18 & 0x3fff;
                if ((int)ordinal >= function->count) function->count = ordinal + 1;
            }
            at += size;
        }
        return SUCCESS;
    }
    return INVALID_VALUE;
}

// From `KERNEL(TYPE NAME, ..) {` behind `extern "C"`: pointers, 64-bit integers, tensor maps, and words.
static int read_text(Function *function, char *text) {
    char opening[128], *from = strstr(text, "extern \"C\"");
    snprintf(opening, sizeof opening, " %s(", function->name);
    from = from ? strstr(from, opening) : NULL;
    if (!from) return INVALID_VALUE;
    from += strlen(opening);
    char *list = strndup(from, strchr(from, ')') - from), *rest = list, *one;
    while ((one = strsep(&rest, ",")) && function->count < MOST_PARAMETERS) {
        int wide = strchr(one, '*') || strstr(one, "i64 ") || strstr(one, "u64 ") || strstr(one, "double ");
        function->sizes[function->count++] = strstr(one, "TensorMap ") ? 128 : wide ? 8 : 4;
    }
    free(list);
    return SUCCESS;
}

int cuModuleGetFunction(Function **made, char *module, const char *name) {
    Function *function = calloc(1, sizeof *function);
    function->name = strdup(name);
    *made = function;
    return strncmp(module, TEXT, sizeof TEXT - 1) ? read_cubin(function, module) : read_text(function, module);
}

int cuFuncGetParamInfo(Function *function, size_t index, size_t *offset, size_t *size) {
    if ((int)index >= function->count) return INVALID_VALUE;
    *offset = 0;
    *size = function->sizes[index];
    return SUCCESS;
}

int cuFuncGetAttribute(int *value, int attribute) { *value = attribute == 0 ? 1024 : 0; return SUCCESS; }

int cuFuncSetAttribute(Function *function, int attribute, int value) {
    (void)function;
    return attribute == 8 && (unsigned)value > most_shared() ? INVALID_VALUE : SUCCESS;
}

int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks) { *blocks = 1; return SUCCESS; }

int cuLaunchKernelEx(const LaunchConfig *launch, Function *function) {
    const unsigned *grid = launch->grid, *block = launch->block;
    unsigned threads = block[0] * block[1] * block[2];
    if (!grid[0] || !grid[1] || !grid[2] || grid[1] > 65535 || grid[2] > 65535) return INVALID_VALUE;
    if (!threads || threads > 1024 || launch->shared_bytes > most_shared()) return INVALID_VALUE;
    FILE *file = fopen(getenv("FAKE_CUDA_LAUNCHES"), "a");
    if (!file) return INVALID_VALUE;
    fprintf(file, "%s\n", function->name);
    fclose(file);
    return SUCCESS;
}

// ---- The compiler: its "cubin" is the source.
int nvrtcVersion(int *major, int *minor) { *major = 12; *minor = 9; return SUCCESS; }
int nvrtcCreateProgram(char **program, const char *source) { *program = strdup(source); return SUCCESS; }
int nvrtcDestroyProgram(char **program) { free(*program); return SUCCESS; }
int nvrtcCompileProgram(void) { return SUCCESS; }
int nvrtcGetProgramLogSize(char *program, size_t *bytes) { (void)program; *bytes = 0; return SUCCESS; }
int nvrtcGetProgramLog(void) { return SUCCESS; }
int nvrtcGetCUBINSize(char *program, size_t *bytes) { *bytes = sizeof TEXT + strlen(program); return SUCCESS; }
int nvrtcGetCUBIN(char *program, char *to) { sprintf(to, "%s%s", TEXT, program); return SUCCESS; }
