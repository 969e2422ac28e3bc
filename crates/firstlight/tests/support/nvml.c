// A stand-in libnvidia-ml.so.1 for tests with two GPUs. Environment variables inject faults:
//   FAKE_NVML_HANG=FUNCTION     that function never returns
//   FAKE_NVML_CRASH=FUNCTION    that function kills its process
//   FAKE_NVML_GPU=8.6 A10       the GPUs' compute capability and name
//   FAKE_NVML_COUNT=3           the number of GPUs, 2 by default
//   FAKE_NVML_REFUSE=1          every query about a GPU is NVML_ERROR_NOT_SUPPORTED
//   FAKE_NVML_FAULTS=1          GPU 1 reports hardware faults
//   FAKE_NVML_PROCESSES=FILE    lines `PID MIB [kept]`: memory on GPU 0 while the process runs, with `kept` also as a zombie
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, NOT_FOUND = 6 };
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory;
typedef struct { unsigned pid; unsigned long long bytes; unsigned gpu_instance, compute_instance; } Process;
typedef struct { unsigned id, scope; long long timestamp, latency; unsigned type, result; unsigned long long value; } Field;
typedef struct { char legacy[16]; unsigned domain, bus, device, ids, subsystem; char bus_id[32]; } Pci;

static int named(const char *variable, const char *function) {
    const char *value = getenv(variable);
    return value && strcmp(value, function) == 0;
}

static void enter(const char *function) {
    if (named("FAKE_NVML_HANG", function)) for (;;) sleep(1000);
    if (named("FAKE_NVML_CRASH", function)) abort();
}

static int refuse(void) { return getenv("FAKE_NVML_REFUSE") != NULL; }

// The state of a process, such as `R`; 0 if it does not exist.
static char state(unsigned pid) {
    char path[64], line[512], *end;
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    end = fgets(line, sizeof line, file) ? strrchr(line, ')') : NULL;
    fclose(file);
    return end ? end[2] : 0;
}

static unsigned long long holders(unsigned gpu, Process *out, unsigned room, unsigned *count) {
    const char *name = getenv("FAKE_NVML_PROCESSES");
    FILE *file = name ? fopen(name, "r") : NULL;
    unsigned long long used = 0;
    char line[128], word[16];
    *count = 0;
    while (file && gpu == 0 && fgets(line, sizeof line, file)) {
        unsigned pid = 0;
        unsigned long long mib = 0;
        word[0] = 0;
        if (sscanf(line, "%u %llu %15s", &pid, &mib, word) < 2) continue;
        char now = state(pid);
        if (now == 0 || (now == 'Z' && strcmp(word, "kept") != 0)) continue;
        used += mib << 20;
        if (out && *count < room) out[*count] = (Process){pid, mib << 20, ~0u, ~0u};
        *count += 1;
    }
    if (file) fclose(file);
    return used;
}

int nvmlInit_v2(void) { enter(__func__); return SUCCESS; }
int nvmlShutdown(void) { enter(__func__); return SUCCESS; }
int nvmlSystemGetDriverVersion(char *out, unsigned length) {
    enter(__func__);
    snprintf(out, length, "580.159.04");
    return SUCCESS;
}
int nvmlSystemGetCudaDriverVersion_v2(int *out) {
    enter(__func__);
    *out = 13000;
    return refuse() ? NOT_SUPPORTED : SUCCESS;
}
int nvmlDeviceGetCount_v2(unsigned *out) {
    enter(__func__);
    const char *count = getenv("FAKE_NVML_COUNT");
    *out = count ? atoi(count) : 2;
    return SUCCESS;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) {
    enter(__func__);
    *out = (void *)(size_t)(index + 1);
    return SUCCESS;
}
static unsigned index_of(void *device) { return (unsigned)(size_t)device - 1; }
int nvmlDeviceGetName(void *device, char *out, unsigned length) {
    enter(__func__);
    const char *gpu = getenv("FAKE_NVML_GPU"), *name = gpu ? strchr(gpu, ' ') : NULL;
    if (name) snprintf(out, length, "%s", name + 1);
    else snprintf(out, length, "Fake GPU %u", index_of(device));
    return refuse() ? NOT_SUPPORTED : SUCCESS;
}
int nvmlDeviceGetUUID(void *device, char *out, unsigned length) {
    enter(__func__);
    snprintf(out, length, "GPU-00000000-0000-0000-0000-%012u", index_of(device));
    return refuse() ? NOT_SUPPORTED : SUCCESS;
}
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
    (void)device;
    enter(__func__);
    const char *gpu = getenv("FAKE_NVML_GPU");
    if (!gpu || sscanf(gpu, "%d.%d", major, minor) != 2) *major = 9, *minor = 0;
    return refuse() ? NOT_SUPPORTED : SUCCESS;
}
int nvmlDeviceGetPciInfo_v3(void *device, Pci *out) {
    enter(__func__);
    memset(out, 0, sizeof *out);
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:0%u:00.0", index_of(device));
    return refuse() ? NOT_SUPPORTED : SUCCESS;
}
int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending) {
    (void)device;
    enter(__func__);
    *current = *pending = 0;
    return refuse() ? NOT_SUPPORTED : SUCCESS;
}
int nvmlDeviceGetMemoryInfo_v2(void *device, Memory *out) {
    unsigned count;
    enter(__func__);
    out->total = 24ull << 30, out->reserved = 0;
    out->used = holders(index_of(device), NULL, 0, &count);
    out->free = out->total - out->used;
    return refuse() ? NOT_SUPPORTED : SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, Process *out) {
    unsigned room = *count;
    enter(__func__);
    if (refuse()) return NOT_SUPPORTED;
    holders(index_of(device), out, room, count);
    return *count > room ? INSUFFICIENT_SIZE : SUCCESS;
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *count, Process *out) {
    (void)device, (void)out;
    enter(__func__);
    *count = 0;
    return SUCCESS;
}

// Links, memory errors and power; the four NVLinks go to a switch.
enum { LINKS = 4, SPEED = 90, REMAPPED_COR = 142, REMAPPED_PENDING = 144, REMAPPED_FAILURE = 145, UNSIGNED_INT = 1 };
static int bad(void *device) { return getenv("FAKE_NVML_FAULTS") != NULL && index_of(device) == 1; }
#define TELLS(function, good, wrong) \
    int function(void *device, unsigned *out) { \
        enter(__func__); \
        *out = bad(device) ? (wrong) : (good); \
        return refuse() ? NOT_SUPPORTED : SUCCESS; \
    }
TELLS(nvmlDeviceGetCurrPcieLinkGeneration, 1, 1)
TELLS(nvmlDeviceGetCurrPcieLinkWidth, 16, 8)
TELLS(nvmlDeviceGetMaxPcieLinkGeneration, 5, 5)
TELLS(nvmlDeviceGetMaxPcieLinkWidth, 16, 16)
TELLS(nvmlDeviceGetPowerUsage, 76123, 76123)
TELLS(nvmlDeviceGetEnforcedPowerLimit, 700000, 500000)
TELLS(nvmlDeviceGetPowerManagementDefaultLimit, 700000, 700000)
TELLS(nvmlDeviceGetRetiredPagesPendingStatus, 0, 0)
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *out) {
    enter(__func__);
    *out = bad(device) ? 0x48 : 1;  // HW slowdown with HW thermal slowdown, or idle
    return refuse() ? NOT_SUPPORTED : SUCCESS;
}
int nvmlDeviceGetEccMode(void *device, unsigned *current, unsigned *pending) {
    (void)device;
    enter(__func__);
    *current = *pending = 1;
    return refuse() ? NOT_SUPPORTED : SUCCESS;
}
int nvmlDeviceGetTotalEccErrors(void *device, unsigned kind, unsigned since, unsigned long long *out) {
    (void)since;
    enter(__func__);
    *out = bad(device) && kind == 1 ? 3 : 0;
    return refuse() ? NOT_SUPPORTED : SUCCESS;
}
int nvmlDeviceGetFieldValues(void *device, int count, Field *fields) {
    enter(__func__);
    for (int i = 0; i < count; i++) {
        unsigned id = fields[i].id;
        int known = id == SPEED || (id >= REMAPPED_COR && id <= REMAPPED_FAILURE);
        fields[i].type = UNSIGNED_INT;
        fields[i].result = known ? SUCCESS : NOT_SUPPORTED;
        fields[i].value = id == SPEED ? 26562 : id == REMAPPED_PENDING && bad(device);
    }
    return refuse() ? NOT_SUPPORTED : SUCCESS;
}
int nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *out) {
    enter(__func__);
    if (link >= LINKS || refuse()) return NOT_SUPPORTED;
    *out = !(bad(device) && link == 2);
    return SUCCESS;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, Pci *out) {
    (void)device, (void)link;
    enter(__func__);
    memset(out, 0, sizeof *out);
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:05:00.0");
    return refuse() ? NOT_SUPPORTED : SUCCESS;
}
int nvmlDeviceGetTopologyCommonAncestor(void *one, void *other, unsigned *out) {
    (void)one, (void)other;
    enter(__func__);
    *out = 40;  // NVML_TOPOLOGY_NODE
    return refuse() ? NOT_SUPPORTED : SUCCESS;
}
int nvmlDeviceGetP2PStatus(void *one, void *other, unsigned capability, unsigned *out) {
    (void)one, (void)other, (void)capability;
    enter(__func__);
    *out = 0;
    return refuse() ? NOT_SUPPORTED : SUCCESS;
}
