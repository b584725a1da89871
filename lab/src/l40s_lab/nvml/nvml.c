/* libnvidia-ml.so.1 of an emulated node: answers what a configuration file says, and takes GPU memory from claims.
 *
 * Configuration ($L40S_LAB_NVML, else /run/l40s-lab/nvml.conf), read again at every call so that the hardware can
 * change while a program runs. Lines of `key=value`; `3.KEY` is GPU 3's, `*.KEY` every GPU's without its own:
 *   driver nvml cuda count     of the node
 *   init=RC                    nvmlInit fails with this code      hang=1   every call blocks, as a wedged driver does
 *   N.busid N.uuid N.serial N.minor N.numa N.name N.device N.subsystem
 *   N.mem_total N.mem_reserved N.bar1_total  MiB      N.gen N.maxgen N.width N.maxwidth
 *   N.temp N.power N.power_limit N.clocks N.reasons N.ecc_cor N.ecc_unc N.remap_cor N.remap_unc N.remap_fail
 *   N.sm_major N.sm_minor N.nvlinks N.nvlinks_up N.nvlink_remote
 *   N.fail=RC                  every call about this GPU fails (15: GPU is lost)
 *   topo.I.J=10|20|30|40|50    common ancestor of two GPUs        p2p.I.J=N  nvmlGpuP2PStatus_t
 *
 * Claims ($L40S_LAB_GPU_CLAIMS, else /run/l40s-lab/gpu-claims): a file named `GPU.PID` holding `BYTES START`, where
 * START is field 22 of /proc/PID/stat. A claim counts while that very process lives, so memory frees itself.
 *
 * Layouts are those of nvml.h 12 and 13, which nvidia-ml-py follows. */
#include <ctype.h>
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
  SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
  DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15, ARGUMENT_VERSION_MISMATCH = 25, UNKNOWN = 999
};
enum { MAX_GPUS = 64, TEXT = 256 };
typedef int Result;
typedef struct { int index; } *Gpu;
typedef unsigned long long u64;

static struct { int index; } gpus[MAX_GPUS];
static int started;

/* ---- configuration ---- */

static FILE *configuration(void) {
  const char *path = getenv("L40S_LAB_NVML");
  return fopen(path ? path : "/run/l40s-lab/nvml.conf", "re");
}

/* The value of `key`, else of `fallback`, else `otherwise`; into `out`. */
static const char *value(const char *key, const char *fallback, const char *otherwise, char out[TEXT]) {
  FILE *file = configuration();
  char line[512];
  int found = 0;
  snprintf(out, TEXT, "%s", otherwise ? otherwise : "");
  if (!file) return out;
  while (fgets(line, sizeof line, file)) {
    char *equals = strchr(line, '=');
    if (!equals) continue;
    *equals = 0;
    equals[1 + strcspn(equals + 1, "\r\n")] = 0;
    if (!strcmp(line, key)) found = 2;
    else if (fallback && found < 2 && !strcmp(line, fallback)) found = 1;
    else continue;
    snprintf(out, TEXT, "%s", equals + 1);
    if (found == 2) break;
  }
  fclose(file);
  return out;
}

static long long number(const char *key, long long otherwise) {
  char text[TEXT];
  value(key, NULL, "", text);
  return *text ? strtoll(text, NULL, 0) : otherwise;
}

static const char *text_of(Gpu gpu, const char *key, const char *otherwise, char out[TEXT]) {
  char own[96], every[96];
  snprintf(own, sizeof own, "%d.%s", gpu->index, key);
  snprintf(every, sizeof every, "*.%s", key);
  return value(own, every, otherwise, out);
}

static long long number_of(Gpu gpu, const char *key, long long otherwise) {
  char text[TEXT];
  text_of(gpu, key, "", text);
  return *text ? strtoll(text, NULL, 0) : otherwise;
}

static int gpu_count(void) {
  long long count = number("count", 0);
  return count < 0 ? 0 : count > MAX_GPUS ? MAX_GPUS : (int)count;
}

static void block_if_wedged(void) {
  while (number("hang", 0)) usleep(100000);
}

static Result usable(Gpu gpu) {
  block_if_wedged();
  if (!started) return UNINITIALIZED;
  if (!gpu || (void *)gpu < (void *)gpus || (void *)gpu >= (void *)(gpus + MAX_GPUS)) return INVALID_ARGUMENT;
  return (Result)number_of(gpu, "fail", SUCCESS);
}

static Result give(char *out, unsigned size, const char *text) {
  if (strlen(text) + 1 > size) return INSUFFICIENT_SIZE;
  strcpy(out, text);
  return SUCCESS;
}

#define NEED(gpu) do { Result wrong = usable(gpu); if (wrong) return wrong; } while (0)

/* ---- claims ---- */

typedef struct { unsigned pid; u64 bytes; } Claim;

/* Field 22 of /proc/PID/stat, 0 where there is no such living process. */
static u64 start_of(unsigned pid) {
  char path[64], line[1024], *rest;
  u64 start = 0;
  char state = 0;
  FILE *file;
  snprintf(path, sizeof path, "/proc/%u/stat", pid);
  if (!(file = fopen(path, "re"))) return 0;
  if (fgets(line, sizeof line, file) && (rest = strrchr(line, ')')))
    if (sscanf(rest + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &state,
               &start) != 2 || state == 'Z' || state == 'X')
      start = 0;
  fclose(file);
  return start;
}

/* Claims on a GPU by living processes, at most `room` of them stored; returns how many there are. */
static unsigned claims_on(int gpu, Claim *out, unsigned room) {
  const char *folder = getenv("L40S_LAB_GPU_CLAIMS");
  unsigned count = 0;
  struct dirent *entry;
  DIR *open;
  if (!folder) folder = "/run/l40s-lab/gpu-claims";
  if (!(open = opendir(folder))) return 0;
  while ((entry = readdir(open))) {
    char path[PATH_MAX], after;
    unsigned pid;
    int index;
    u64 bytes, start;
    FILE *file;
    if (sscanf(entry->d_name, "%d.%u%c", &index, &pid, &after) != 2 || index != gpu) continue;
    snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
    if (!(file = fopen(path, "re"))) continue;
    if (fscanf(file, "%llu %llu", &bytes, &start) == 2 && start && start_of(pid) == start) {
      if (count < room) out[count] = (Claim){pid, bytes};
      count++;
    }
    fclose(file);
  }
  closedir(open);
  return count;
}

static u64 claimed(Gpu gpu) {
  Claim claims[256];
  unsigned count = claims_on(gpu->index, claims, 256);
  u64 sum = 0;
  for (unsigned i = 0; i < count && i < 256; i++) sum += claims[i].bytes;
  return sum;
}

/* ---- the library ---- */

Result nvmlInit_v2(void) {
  Result wrong;
  FILE *file;
  block_if_wedged();
  if ((wrong = (Result)number("init", SUCCESS))) return wrong;
  if (!(file = configuration())) return DRIVER_NOT_LOADED;
  fclose(file);
  for (int i = 0; i < MAX_GPUS; i++) gpus[i].index = i;
  started++;
  return SUCCESS;
}
Result nvmlInit(void) { return nvmlInit_v2(); }
Result nvmlInitWithFlags(unsigned flags) { (void)flags; return nvmlInit_v2(); }
Result nvmlShutdown(void) {
  if (!started) return UNINITIALIZED;
  started--;
  return SUCCESS;
}
const char *nvmlErrorString(Result code) {
  switch (code) {
    case SUCCESS: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case 10: return "Timeout";
    case 12: return "Shared Library Not Found";
    case 13: return "Function Not Found";
    case GPU_IS_LOST: return "GPU is lost";
    case 16: return "GPU requires restart";
    case 18: return "Driver/library version mismatch";
    case ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
    default: return "Unknown Error";
  }
}

Result nvmlSystemGetDriverVersion(char *out, unsigned size) {
  char text[TEXT];
  block_if_wedged();
  return started ? give(out, size, value("driver", NULL, "", text)) : UNINITIALIZED;
}
Result nvmlSystemGetNVMLVersion(char *out, unsigned size) {
  char text[TEXT];
  return give(out, size, value("nvml", NULL, "", text));
}
Result nvmlSystemGetCudaDriverVersion(int *out) { *out = (int)number("cuda", 0); return SUCCESS; }
Result nvmlSystemGetCudaDriverVersion_v2(int *out) { return nvmlSystemGetCudaDriverVersion(out); }
Result nvmlSystemGetProcessName(unsigned pid, char *out, unsigned size) {
  char path[64], line[TEXT] = "";
  FILE *file;
  snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
  if (!(file = fopen(path, "re"))) return NOT_FOUND;
  if (!fgets(line, sizeof line, file)) line[0] = 0;
  fclose(file);
  snprintf(out, size, "%s", line);
  return SUCCESS;
}

Result nvmlDeviceGetCount_v2(unsigned *out) {
  block_if_wedged();
  if (!started) return UNINITIALIZED;
  *out = (unsigned)gpu_count();
  return SUCCESS;
}
Result nvmlDeviceGetCount(unsigned *out) { return nvmlDeviceGetCount_v2(out); }
Result nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu *out) {
  block_if_wedged();
  if (!started) return UNINITIALIZED;
  if (index >= (unsigned)gpu_count()) return INVALID_ARGUMENT;
  *out = (Gpu)&gpus[index];
  return (Result)number_of(*out, "fail", SUCCESS);
}
Result nvmlDeviceGetHandleByIndex(unsigned index, Gpu *out) { return nvmlDeviceGetHandleByIndex_v2(index, out); }
Result nvmlDeviceGetIndex(Gpu gpu, unsigned *out) { NEED(gpu); *out = (unsigned)gpu->index; return SUCCESS; }

#define TEXT_QUERY(function, key, otherwise)                                                                           \
  Result function(Gpu gpu, char *out, unsigned size) {                                                                 \
    char text[TEXT];                                                                                                   \
    NEED(gpu);                                                                                                         \
    return give(out, size, text_of(gpu, key, otherwise, text));                                                        \
  }
TEXT_QUERY(nvmlDeviceGetName, "name", "")
TEXT_QUERY(nvmlDeviceGetUUID, "uuid", "")
TEXT_QUERY(nvmlDeviceGetSerial, "serial", "")
TEXT_QUERY(nvmlDeviceGetVbiosVersion, "vbios", "95.02.66.00.02")
TEXT_QUERY(nvmlDeviceGetBoardPartNumber, "part", "900-2G133-0080-000")

Result nvmlDeviceGetHandleByUUID(const char *uuid, Gpu *out) {
  char text[TEXT];
  for (int i = 0; i < gpu_count(); i++)
    if (!strcmp(text_of((Gpu)&gpus[i], "uuid", "", text), uuid)) {
      *out = (Gpu)&gpus[i];
      return usable(*out);
    }
  return NOT_FOUND;
}

typedef struct {
  char busIdLegacy[16];
  unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
  char busId[32];
} PciInfo;
static int parse_address(const char *text, unsigned parts[4]) {
  parts[3] = 0;
  return sscanf(text, "%x:%x:%x.%x", &parts[0], &parts[1], &parts[2], &parts[3]) >= 3;
}
Result nvmlDeviceGetPciInfo_v3(Gpu gpu, PciInfo *out) {
  char text[TEXT];
  unsigned at[4];
  NEED(gpu);
  if (!parse_address(text_of(gpu, "busid", "", text), at)) return UNKNOWN;
  memset(out, 0, sizeof *out);
  out->domain = at[0];
  out->bus = at[1];
  out->device = at[2];
  out->pciDeviceId = (unsigned)number_of(gpu, "device", 0) << 16 | 0x10de;
  out->pciSubSystemId = (unsigned)number_of(gpu, "subsystem", 0) << 16 | 0x10de;
  snprintf(out->busId, sizeof out->busId, "%08X:%02X:%02X.%u", at[0], at[1], at[2], at[3]);
  snprintf(out->busIdLegacy, sizeof out->busIdLegacy, "%04X:%02X:%02X.%u", at[0] & 0xffff, at[1] & 0xff, at[2] & 0xff,
           at[3] & 7);
  return SUCCESS;
}
Result nvmlDeviceGetPciInfo_v2(Gpu gpu, PciInfo *out) { return nvmlDeviceGetPciInfo_v3(gpu, out); }
Result nvmlDeviceGetHandleByPciBusId_v2(const char *address, Gpu *out) {
  unsigned wanted[4], at[4];
  char text[TEXT];
  if (!parse_address(address, wanted)) return INVALID_ARGUMENT;
  for (int i = 0; i < gpu_count(); i++)
    if (parse_address(text_of((Gpu)&gpus[i], "busid", "", text), at) && !memcmp(at, wanted, 3 * sizeof *at)) {
      *out = (Gpu)&gpus[i];
      return usable(*out);
    }
  return NOT_FOUND;
}

typedef struct { u64 total, free, used; } Memory;
typedef struct { unsigned version; u64 total, reserved, free, used; } Memory2;
static void memory_of(Gpu gpu, Memory2 *out) {
  out->total = (u64)number_of(gpu, "mem_total", 0) << 20;
  out->reserved = (u64)number_of(gpu, "mem_reserved", 0) << 20;
  out->used = claimed(gpu);
  if (out->used > out->total - out->reserved) out->used = out->total - out->reserved;
  out->free = out->total - out->reserved - out->used;
}
/* The first version counts what the driver keeps as used; the second tells it apart. */
Result nvmlDeviceGetMemoryInfo(Gpu gpu, Memory *out) {
  Memory2 memory;
  NEED(gpu);
  memory_of(gpu, &memory);
  *out = (Memory){memory.total, memory.free, memory.used + memory.reserved};
  return SUCCESS;
}
Result nvmlDeviceGetMemoryInfo_v2(Gpu gpu, Memory2 *out) {
  NEED(gpu);
  if (out->version != (sizeof *out | 2u << 24)) return ARGUMENT_VERSION_MISMATCH;
  memory_of(gpu, out);
  return SUCCESS;
}
typedef struct { u64 total, free, used; } Bar1;
Result nvmlDeviceGetBAR1MemoryInfo(Gpu gpu, Bar1 *out) {
  NEED(gpu);
  out->total = (u64)number_of(gpu, "bar1_total", 0) << 20;
  out->used = 1 << 20;
  out->free = out->total - out->used;
  return SUCCESS;
}

#define NUMBER_QUERY(function, key, otherwise)                                                                         \
  Result function(Gpu gpu, unsigned *out) {                                                                            \
    NEED(gpu);                                                                                                         \
    *out = (unsigned)number_of(gpu, key, otherwise);                                                                   \
    return SUCCESS;                                                                                                    \
  }
NUMBER_QUERY(nvmlDeviceGetMaxPcieLinkGeneration, "maxgen", 4)
NUMBER_QUERY(nvmlDeviceGetGpuMaxPcieLinkGeneration, "maxgen", 4)
NUMBER_QUERY(nvmlDeviceGetCurrPcieLinkWidth, "width", 16)
NUMBER_QUERY(nvmlDeviceGetMaxPcieLinkWidth, "maxwidth", 16)
NUMBER_QUERY(nvmlDeviceGetPcieReplayCounter, "replays", 0)
NUMBER_QUERY(nvmlDeviceGetNumaNodeId, "numa", 0)
NUMBER_QUERY(nvmlDeviceGetMinorNumber, "minor", gpu->index)
NUMBER_QUERY(nvmlDeviceGetPowerUsage, "power", claimed(gpu) ? 98000 : 33000)
NUMBER_QUERY(nvmlDeviceGetPowerManagementLimit, "power_limit", 350000)
NUMBER_QUERY(nvmlDeviceGetEnforcedPowerLimit, "power_limit", 350000)
NUMBER_QUERY(nvmlDeviceGetPersistenceMode, "persistence", 1)
NUMBER_QUERY(nvmlDeviceGetComputeMode, "compute_mode", 0)
NUMBER_QUERY(nvmlDeviceGetDisplayMode, "display_mode", 1)
NUMBER_QUERY(nvmlDeviceGetDisplayActive, "display_active", 0)
NUMBER_QUERY(nvmlDeviceGetPerformanceState, "pstate", claimed(gpu) ? 0 : 8)
NUMBER_QUERY(nvmlDeviceGetArchitecture, "architecture", 8)
NUMBER_QUERY(nvmlDeviceGetNumGpuCores, "cores", 18176)

/* An idle L40S rests at generation 1 and comes up with work. */
Result nvmlDeviceGetCurrPcieLinkGeneration(Gpu gpu, unsigned *out) {
  NEED(gpu);
  long long most = number_of(gpu, "maxgen", 4);
  *out = (unsigned)number_of(gpu, "gen", claimed(gpu) ? most : 1);
  return SUCCESS;
}
Result nvmlDeviceGetUtilizationRates(Gpu gpu, unsigned out[2]) {
  NEED(gpu);
  out[0] = (unsigned)number_of(gpu, "util", 0);
  out[1] = (unsigned)number_of(gpu, "memutil", 0);
  return SUCCESS;
}
Result nvmlDeviceGetTemperature(Gpu gpu, int sensor, unsigned *out) {
  (void)sensor;
  NEED(gpu);
  *out = (unsigned)number_of(gpu, "temp", 31);
  return SUCCESS;
}
Result nvmlDeviceGetClockInfo(Gpu gpu, int kind, unsigned *out) {
  NEED(gpu);
  *out = (unsigned)number_of(gpu, "clocks", kind == 2 ? 9001 : claimed(gpu) ? 2520 : 210);
  return SUCCESS;
}
Result nvmlDeviceGetMaxClockInfo(Gpu gpu, int kind, unsigned *out) {
  NEED(gpu);
  *out = kind == 2 ? 9001 : 2520;
  return SUCCESS;
}
/* Clock event reasons: bit 0 is idle. */
Result nvmlDeviceGetCurrentClocksEventReasons(Gpu gpu, u64 *out) {
  NEED(gpu);
  *out = (u64)number_of(gpu, "reasons", claimed(gpu) ? 0 : 1);
  return SUCCESS;
}
Result nvmlDeviceGetCurrentClocksThrottleReasons(Gpu gpu, u64 *out) {
  return nvmlDeviceGetCurrentClocksEventReasons(gpu, out);
}
Result nvmlDeviceGetCudaComputeCapability(Gpu gpu, int *major, int *minor) {
  NEED(gpu);
  *major = (int)number_of(gpu, "sm_major", 8);
  *minor = (int)number_of(gpu, "sm_minor", 9);
  return SUCCESS;
}
Result nvmlDeviceGetMigMode(Gpu gpu, unsigned *current, unsigned *pending) {
  (void)current;
  (void)pending;
  NEED(gpu);
  return NOT_SUPPORTED;
}
/* Without `nvlinks` a GPU has none; `nvlink_remote` is the PCI address at the other end, hidden by default. */
static Result nvlink(Gpu gpu, unsigned link) {
  long long count;
  NEED(gpu);
  count = number_of(gpu, "nvlinks", 0);
  return count <= 0 ? NOT_SUPPORTED : link >= count ? INVALID_ARGUMENT : SUCCESS;
}
#define NEED_NVLINK(gpu, link) do { Result wrong = nvlink(gpu, link); if (wrong) return wrong; } while (0)
Result nvmlDeviceGetNvLinkState(Gpu gpu, unsigned link, unsigned *out) {
  NEED_NVLINK(gpu, link);
  *out = link < number_of(gpu, "nvlinks_up", link + 1);
  return SUCCESS;
}
Result nvmlDeviceGetNvLinkCapability(Gpu gpu, unsigned link, int capability, unsigned *out) {
  (void)capability;
  NEED_NVLINK(gpu, link);
  *out = 1;
  return SUCCESS;
}
Result nvmlDeviceGetNvLinkRemotePciInfo_v2(Gpu gpu, unsigned link, PciInfo *out) {
  char text[TEXT];
  unsigned at[4] = {0xffffffff, 0xff, 0xff, 0};
  NEED_NVLINK(gpu, link);
  parse_address(text_of(gpu, "nvlink_remote", "ffffffff:ff:ff.0", text), at);
  memset(out, 0, sizeof *out);
  out->domain = at[0];
  out->bus = at[1];
  out->device = at[2];
  snprintf(out->busId, sizeof out->busId, "%08X:%02X:%02X.%u", at[0], at[1], at[2], at[3]);
  snprintf(out->busIdLegacy, sizeof out->busIdLegacy, at[0] > 0xffff ? "%07X:%02X:%02X.%u" : "%04X:%02X:%02X.%u",
           at[0] > 0xffff ? at[0] >> 4 : at[0], at[1] & 0xff, at[2] & 0xff, at[3] & 7);
  return SUCCESS;
}
Result nvmlDeviceGetEccMode(Gpu gpu, unsigned *current, unsigned *pending) {
  NEED(gpu);
  *current = *pending = (unsigned)number_of(gpu, "ecc", 1);
  return SUCCESS;
}
Result nvmlDeviceGetTotalEccErrors(Gpu gpu, int kind, int counter, u64 *out) {
  (void)counter;
  NEED(gpu);
  *out = (u64)number_of(gpu, kind ? "ecc_unc" : "ecc_cor", 0);
  return SUCCESS;
}
Result nvmlDeviceGetRemappedRows(Gpu gpu, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                                 unsigned *failed) {
  NEED(gpu);
  *corrected = (unsigned)number_of(gpu, "remap_cor", 0);
  *uncorrected = (unsigned)number_of(gpu, "remap_unc", 0);
  *pending = (unsigned)number_of(gpu, "remap_pending", 0);
  *failed = (unsigned)number_of(gpu, "remap_fail", 0);
  return SUCCESS;
}

/* ---- pairs ---- */

static long long pair_number(const char *what, Gpu a, Gpu b, long long otherwise) {
  char key[48];
  int low = a->index < b->index ? a->index : b->index, high = a->index < b->index ? b->index : a->index;
  snprintf(key, sizeof key, "%s.%d.%d", what, low, high);
  return number(key, otherwise);
}
Result nvmlDeviceGetTopologyCommonAncestor(Gpu a, Gpu b, int *out) {
  NEED(a);
  NEED(b);
  *out = a == b ? 0 : (int)pair_number("topo", a, b, 50);
  return SUCCESS;
}
Result nvmlDeviceGetP2PStatus(Gpu a, Gpu b, int capability, int *out) {
  NEED(a);
  NEED(b);
  /* 0 OK, 5 not supported; NVLink (capability 2) is not there */
  *out = capability == 2 ? 5 : (int)pair_number("p2p", a, b, 0);
  return SUCCESS;
}

/* ---- processes ---- */

typedef struct { unsigned pid; u64 usedGpuMemory; unsigned gpuInstanceId, computeInstanceId; } Process;
Result nvmlDeviceGetComputeRunningProcesses_v3(Gpu gpu, unsigned *count, Process *out) {
  Claim claims[256];
  unsigned found;
  NEED(gpu);
  found = claims_on(gpu->index, claims, 256);
  if (found > 256) found = 256;
  if (found > *count || (found && !out)) {
    *count = found;
    return INSUFFICIENT_SIZE;
  }
  for (unsigned i = 0; i < found; i++) out[i] = (Process){claims[i].pid, claims[i].bytes, UINT_MAX, UINT_MAX};
  *count = found;
  return SUCCESS;
}
Result nvmlDeviceGetComputeRunningProcesses_v2(Gpu gpu, unsigned *count, Process *out) {
  return nvmlDeviceGetComputeRunningProcesses_v3(gpu, count, out);
}
Result nvmlDeviceGetGraphicsRunningProcesses_v3(Gpu gpu, unsigned *count, Process *out) {
  (void)out;
  NEED(gpu);
  *count = 0;
  return SUCCESS;
}
