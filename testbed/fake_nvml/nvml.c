/*
 * A libnvidia-ml.so.1 without a GPU, for tests: the functions that the agent calls, answered
 * from a script file that a test rewrites while the agent runs.
 *
 * Nothing about any GPU model is in here. The script holds `key value` lines; a key that it does
 * not hold is NVML_ERROR_NOT_SUPPORTED, as on a card that lacks the thing. Like the real library
 * it checks the version word of versioned structs, refuses handles it did not give, and answers
 * NVML_ERROR_UNINITIALIZED before nvmlInit and after nvmlShutdown.
 *
 * Keys: `driver_version`, `nvml_version`, `cuda`, `init` (result of nvmlInit), `gpus`;
 * `<gpu>.<name>` for a value; `ret.<function>` or `<gpu>.ret.<function>` for the result of a
 * function; `hang.<function>` or `<gpu>.hang.<function>`: it does not return while the key is
 * there; `<gpu>.lost 1`: GPU_IS_LOST from everything.
 * Events: lines `gpu type data gi ci` appended to the file `<script>.events`.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, TIMEOUT = 10, GPU_IS_LOST = 15, MEMORY = 20,
    ARGUMENT_VERSION_MISMATCH = 25, UNKNOWN = 999,
};
enum { MAX_GPUS = 32, MAX_MIG = 8, NAME = 128 };

typedef int ret_t;
typedef unsigned int u32;
typedef unsigned long long u64;

/* ---- the script ------------------------------------------------------------------------- */

struct entry { u32 hash; char *key; char *value; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct entry *entries;
static size_t entry_count;
static char *text;
static struct stat seen;
static int initialized;
static int gpus_at_init; /* as in the real library, the list of devices is fixed by nvmlInit */

static const char *script_path(void) { return getenv("FAKE_NVML_SCRIPT"); }

static u32 hash_of(const char *key) {
    u32 hash = 2166136261u;
    for (; *key; key++) hash = (hash ^ (unsigned char)*key) * 16777619u;
    return hash;
}

static void parse(void) {
    size_t room = 0;
    entry_count = 0;
    for (char *line = text; line && *line;) {
        char *end = strchr(line, '\n');
        if (end) *end = '\0';
        char *blank = strchr(line, ' ');
        if (blank) {
            *blank = '\0';
            if (entry_count == room) {
                room = room ? room * 2 : 256;
                struct entry *bigger = realloc(entries, room * sizeof *entries);
                if (!bigger) abort();
                entries = bigger;
            }
            entries[entry_count++] = (struct entry){hash_of(line), line, blank + 1};
        }
        line = end ? end + 1 : NULL;
    }
}

/* Reads the script again if it is another file or was changed. Called with the lock held. */
static void refresh(void) {
    struct stat now;
    const char *path = script_path();
    if (!path || stat(path, &now) != 0) return;
    if (text && now.st_ino == seen.st_ino && now.st_size == seen.st_size &&
        now.st_mtim.tv_sec == seen.st_mtim.tv_sec && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec)
        return;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    char *fresh = malloc((size_t)now.st_size + 1);
    ssize_t got = fresh ? read(file, fresh, (size_t)now.st_size) : -1;
    close(file);
    if (got < 0) { free(fresh); return; }
    fresh[got] = '\0';
    free(text);
    free(entries);
    entries = NULL;
    text = fresh;
    seen = now;
    parse();
}

/* Copies the value of a key; 0 when there is none. */
static int look_up(const char *key, char *value, size_t size) {
    int found = 0;
    pthread_mutex_lock(&lock);
    refresh();
    u32 hash = hash_of(key);
    for (size_t i = 0; i < entry_count && !found; i++)
        if (entries[i].hash == hash && strcmp(entries[i].key, key) == 0) {
            snprintf(value, size, "%s", entries[i].value);
            found = 1;
        }
    pthread_mutex_unlock(&lock);
    return found;
}

static int look_up_of(int gpu, const char *name, char *value, size_t size) {
    char key[NAME + 16];
    snprintf(key, sizeof key, "%d.%s", gpu, name);
    return look_up(key, value, size);
}

static long long number(const char *key, long long otherwise) {
    char value[64];
    return look_up(key, value, sizeof value) ? strtoll(value, NULL, 0) : otherwise;
}

static void pause_ms(long ms) {
    struct timespec time = {ms / 1000, (ms % 1000) * 1000000L};
    nanosleep(&time, NULL);
}

/* A watch of the script's folder, so that who waits for events costs nothing, as with a driver. */
static int watch_folder(void) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s", script_path() ? script_path() : ".");
    int watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (watch >= 0)
        inotify_add_watch(watch, dirname(path), IN_MODIFY | IN_CREATE | IN_MOVED_TO);
    return watch;
}

static void wait_for_change(int watch, long ms) {
    char changes[4096];
    struct pollfd ready = {.fd = watch, .events = POLLIN};
    if (watch < 0) {
        pause_ms(ms < 5 ? ms : 5);
    } else if (poll(&ready, 1, (int)ms) > 0) {
        while (read(watch, changes, sizeof changes) > 0) {}
    }
}

static long now_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000L + time.tv_nsec / 1000000L;
}

/* ---- handles and what happens before every call ------------------------------------------ */

struct device { int gpu; int mig; };  /* mig < 0: the whole GPU */
static struct device handles[MAX_GPUS][MAX_MIG + 1];

static struct device *handle_of(int gpu, int mig) {
    struct device *device = &handles[gpu][mig + 1];
    device->gpu = gpu;
    device->mig = mig;
    return device;
}

static int is_handle(const struct device *device) {
    const struct device *first = &handles[0][0];
    return device >= first && device < first + MAX_GPUS * (MAX_MIG + 1);
}

static int scripted(const char *kind, int gpu, const char *function, char *value, size_t size) {
    char key[NAME];
    snprintf(key, sizeof key, "%s.%s", kind, function);
    if (look_up(key, value, size)) return 1;
    return gpu >= 0 && look_up_of(gpu, key, value, size);
}

static ret_t before(const char *function, int gpu) {
    char value[64];
    while (scripted("hang", gpu, function, value, sizeof value)) pause_ms(20);
    if (!initialized) return UNINITIALIZED;
    if (scripted("ret", gpu, function, value, sizeof value)) return atoi(value);
    if (gpu >= 0 && look_up_of(gpu, "lost", value, sizeof value) && atoi(value)) return GPU_IS_LOST;
    return SUCCESS;
}

#define ENTER(device)                                                     \
    do {                                                                  \
        if (!is_handle(device)) return INVALID_ARGUMENT;                  \
        ret_t first_ = before(__func__, (device)->gpu);                   \
        if (first_ != SUCCESS) return first_;                             \
    } while (0)

static ret_t get_number(struct device *device, const char *name, long long *value) {
    char found[64];
    if (!look_up_of(device->gpu, name, found, sizeof found)) return NOT_SUPPORTED;
    *value = strtoll(found, NULL, 0);
    if (found[0] != '-') *value = (long long)strtoull(found, NULL, 0);
    return SUCCESS;
}

static ret_t get_u32(struct device *device, const char *name, u32 *out) {
    long long value;
    ret_t ret = get_number(device, name, &value);
    if (ret == SUCCESS) *out = (u32)value;
    return ret;
}

static ret_t get_u64(struct device *device, const char *name, u64 *out) {
    long long value;
    ret_t ret = get_number(device, name, &value);
    if (ret == SUCCESS) *out = (u64)value;
    return ret;
}

static u32 number_of(struct device *device, const char *name) {
    u32 value = 0;
    (void)get_u32(device, name, &value);
    return value;
}

static ret_t get_text(struct device *device, const char *name, char *out, u32 size) {
    char found[256];
    if (!look_up_of(device->gpu, name, found, sizeof found)) return NOT_SUPPORTED;
    if (strlen(found) + 1 > size) return INSUFFICIENT_SIZE;
    strcpy(out, found);
    return SUCCESS;
}

/* ---- the library and the driver ---------------------------------------------------------- */

API ret_t nvmlInitWithFlags(u32 flags) {
    (void)flags;
    char value[64];
    while (look_up("hang.nvmlInitWithFlags", value, sizeof value)) pause_ms(20);
    ret_t ret = script_path() ? (ret_t)number("init", SUCCESS) : DRIVER_NOT_LOADED;
    if (ret == SUCCESS && initialized++ == 0) gpus_at_init = (int)number("gpus", 0);
    return ret;
}
API ret_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

API ret_t nvmlShutdown(void) {
    if (!initialized) return UNINITIALIZED;
    initialized--;
    const char *path = getenv("FAKE_NVML_SHUTDOWN_LOG");
    int file = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644) : -1;
    if (file >= 0) {
        dprintf(file, "%d\n", (int)getpid());
        close(file);
    }
    return SUCCESS;
}

API const char *nvmlErrorString(ret_t ret) {
    static const char *const texts[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported",
        "Insufficient Permissions", "Already Initialized", "Not Found", "Insufficient Size",
        "Insufficient External Power", "Driver Not Loaded", "Timeout",
        "Interrupt Request Issue", "NVML Shared Library Not Found", "Function Not Found",
        "Corrupted infoROM", "GPU is lost", "GPU requires reset",
        "GPU access blocked by the operating system", "Driver/library version mismatch",
        "In Use by Another Client", "Insufficient Memory", "No data",
    };
    return ret >= 0 && ret < (int)(sizeof texts / sizeof *texts) ? texts[ret] : "Unknown Error";
}

static ret_t system_text(const char *function, const char *key, char *out, u32 size) {
    ret_t ret = before(function, -1);
    if (ret != SUCCESS) return ret;
    char value[96];
    if (!look_up(key, value, sizeof value)) return NOT_SUPPORTED;
    if (strlen(value) + 1 > size) return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return SUCCESS;
}
API ret_t nvmlSystemGetDriverVersion(char *out, u32 size) {
    return system_text(__func__, "driver_version", out, size);
}
API ret_t nvmlSystemGetNVMLVersion(char *out, u32 size) {
    return system_text(__func__, "nvml_version", out, size);
}
API ret_t nvmlSystemGetCudaDriverVersion_v2(int *out) {
    ret_t ret = before(__func__, -1);
    if (ret == SUCCESS) *out = (int)number("cuda", 0);
    return ret;
}

/* ---- identity ---------------------------------------------------------------------------- */


API ret_t nvmlDeviceGetCount_v2(u32 *out) {
    ret_t ret = before(__func__, -1);
    if (ret == SUCCESS) *out = (u32)gpus_at_init;
    return ret;
}

API ret_t nvmlDeviceGetHandleByIndex_v2(u32 index, struct device **out) {
    ret_t ret = before(__func__, (int)index);
    if (ret != SUCCESS) return ret;
    if ((int)index >= gpus_at_init || index >= MAX_GPUS) return INVALID_ARGUMENT;
    *out = handle_of((int)index, -1);
    return SUCCESS;
}

static ret_t mig_text(struct device *device, const char *name, char *out, u32 size) {
    char key[NAME];
    snprintf(key, sizeof key, "mig%d.%s", device->mig, name);
    return get_text(device, key, out, size);
}
API ret_t nvmlDeviceGetName(struct device *device, char *out, u32 size) {
    ENTER(device);
    return device->mig < 0 ? get_text(device, "name", out, size)
                           : mig_text(device, "name", out, size);
}
API ret_t nvmlDeviceGetUUID(struct device *device, char *out, u32 size) {
    ENTER(device);
    return device->mig < 0 ? get_text(device, "uuid", out, size)
                           : mig_text(device, "uuid", out, size);
}
API ret_t nvmlDeviceGetSerial(struct device *device, char *out, u32 size) {
    ENTER(device);
    return get_text(device, "serial", out, size);
}
API ret_t nvmlDeviceGetVbiosVersion(struct device *device, char *out, u32 size) {
    ENTER(device);
    return get_text(device, "vbios", out, size);
}
API ret_t nvmlDeviceGetInforomImageVersion(struct device *device, char *out, u32 size) {
    ENTER(device);
    return get_text(device, "inforom_image", out, size);
}
API ret_t nvmlDeviceGetInforomVersion(struct device *device, u32 object, char *out, u32 size) {
    ENTER(device);
    char key[NAME];
    snprintf(key, sizeof key, "inforom_%u", object);
    return get_text(device, key, out, size);
}

struct pci_info {
    char legacy[16];
    u32 domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};
API ret_t nvmlDeviceGetPciInfo_v3(struct device *device, struct pci_info *out) {
    ENTER(device);
    memset(out, 0, sizeof *out);
    ret_t ret = get_text(device, "pci", out->bus_id, sizeof out->bus_id);
    if (ret != SUCCESS) return ret;
    if (sscanf(out->bus_id, "%x:%x:%x", &out->domain, &out->bus, &out->device) != 3) return UNKNOWN;
    snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.0", out->domain & 0xffff,
             out->bus & 0xff, out->device & 0x1f);
    return SUCCESS;
}

/* ---- single numbers ---------------------------------------------------------------------- */

#define U32_GETTER(function, name)                             \
    API ret_t function(struct device *device, u32 *out) {      \
        ENTER(device);                                         \
        return get_u32(device, name, out);                     \
    }
#define U64_GETTER(function, name)                             \
    API ret_t function(struct device *device, u64 *out) {      \
        ENTER(device);                                         \
        return get_u64(device, name, out);                     \
    }
#define PAIR_GETTER(function, first, second)                                   \
    API ret_t function(struct device *device, u32 *one, u32 *two) {            \
        ENTER(device);                                                         \
        ret_t ret = get_u32(device, first, one);                               \
        return ret == SUCCESS ? get_u32(device, second, two) : ret;            \
    }
/* Values by a selector: the key is `name` and the selector's number, as `clock1`. */
#define SELECT_GETTER(function, name)                                          \
    API ret_t function(struct device *device, u32 which, u32 *out) {           \
        ENTER(device);                                                         \
        char key[NAME];                                                        \
        snprintf(key, sizeof key, name "%u", which);                           \
        return get_u32(device, key, out);                                      \
    }

U32_GETTER(nvmlDeviceGetMinorNumber, "minor")
U32_GETTER(nvmlDeviceGetBrand, "brand")
U32_GETTER(nvmlDeviceGetArchitecture, "architecture")
U32_GETTER(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_gen_max")
U32_GETTER(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_max")
U32_GETTER(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_gen")
U32_GETTER(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width")
U32_GETTER(nvmlDeviceGetPowerUsage, "power_mw")
U32_GETTER(nvmlDeviceGetPowerManagementLimit, "power_limit_mw")
U32_GETTER(nvmlDeviceGetEnforcedPowerLimit, "enforced_power_limit_mw")
U32_GETTER(nvmlDeviceGetFanSpeed, "fan")
U32_GETTER(nvmlDeviceGetPerformanceState, "pstate")
U32_GETTER(nvmlDeviceGetPersistenceMode, "persistence")
U32_GETTER(nvmlDeviceGetPcieReplayCounter, "pcie_replay")
U64_GETTER(nvmlDeviceGetTotalEnergyConsumption, "energy_mj")
U64_GETTER(nvmlDeviceGetCurrentClocksEventReasons, "clocks_event_reasons")
U64_GETTER(nvmlDeviceGetCurrentClocksThrottleReasons, "clocks_throttle_reasons")
U64_GETTER(nvmlDeviceGetSupportedEventTypes, "event_types")
PAIR_GETTER(nvmlDeviceGetCudaComputeCapability, "cc_major", "cc_minor")
PAIR_GETTER(nvmlDeviceGetPowerManagementLimitConstraints, "power_min_mw", "power_max_mw")
PAIR_GETTER(nvmlDeviceGetMigMode, "mig_current", "mig_pending")
PAIR_GETTER(nvmlDeviceGetEccMode, "ecc_current", "ecc_pending")
PAIR_GETTER(nvmlDeviceGetEncoderUtilization, "util_enc", "util_period")
PAIR_GETTER(nvmlDeviceGetDecoderUtilization, "util_dec", "util_period")
SELECT_GETTER(nvmlDeviceGetClockInfo, "clock")
SELECT_GETTER(nvmlDeviceGetTemperature, "temperature")
SELECT_GETTER(nvmlDeviceGetTemperatureThreshold, "threshold")
SELECT_GETTER(nvmlDeviceGetNvLinkState, "nvlink")
SELECT_GETTER(nvmlDeviceGetPcieThroughput, "pcie_kbps")

struct utilization { u32 gpu, memory; };
API ret_t nvmlDeviceGetUtilizationRates(struct device *device, struct utilization *out) {
    ENTER(device);
    if (number_of(device, "mig_current")) return NOT_SUPPORTED;
    ret_t ret = get_u32(device, "util_gpu", &out->gpu);
    return ret == SUCCESS ? get_u32(device, "util_mem", &out->memory) : ret;
}

API ret_t nvmlDeviceValidateInforom(struct device *device) {
    ENTER(device);
    u32 valid;
    ret_t ret = get_u32(device, "inforom_valid", &valid);
    return ret != SUCCESS ? ret : valid ? SUCCESS : 14 /* CORRUPTED_INFOROM */;
}

/* ---- structs ----------------------------------------------------------------------------- */

#define VERSION(type, number) ((u32)(sizeof(type) | ((u32)(number) << 24)))
#define CHECK_VERSION(out, number)                                                  \
    do {                                                                            \
        if ((out)->version != VERSION(*(out), number)) return ARGUMENT_VERSION_MISMATCH; \
    } while (0)

/* Memory of the GPU, or of a MIG device: the same keys behind `mig<n>.`. */
static ret_t get_memory(struct device *device, const char *name, u64 *out) {
    char key[NAME];
    if (device->mig < 0) return get_u64(device, name, out);
    snprintf(key, sizeof key, "mig%d.%s", device->mig, name);
    return get_u64(device, key, out);
}
struct memory { u64 total, free, used; };
API ret_t nvmlDeviceGetMemoryInfo(struct device *device, struct memory *out) {
    ENTER(device);
    ret_t ret = get_memory(device, "fb_total", &out->total);
    if (ret == SUCCESS) ret = get_memory(device, "fb_used", &out->used);
    if (ret == SUCCESS) out->free = out->total - out->used;
    return ret;
}
struct memory2 { u32 version; u64 total, reserved, free, used; };
API ret_t nvmlDeviceGetMemoryInfo_v2(struct device *device, struct memory2 *out) {
    ENTER(device);
    CHECK_VERSION(out, 2);
    ret_t ret = get_memory(device, "fb_total", &out->total);
    if (ret == SUCCESS) ret = get_memory(device, "fb_used", &out->used);
    if (ret == SUCCESS) ret = get_memory(device, "fb_reserved", &out->reserved);
    if (ret == SUCCESS) out->free = out->total - out->used - out->reserved;
    return ret;
}
struct bar1 { u64 total, free, used; };
API ret_t nvmlDeviceGetBAR1MemoryInfo(struct device *device, struct bar1 *out) {
    ENTER(device);
    ret_t ret = get_u64(device, "bar1_total", &out->total);
    if (ret == SUCCESS) ret = get_u64(device, "bar1_used", &out->used);
    if (ret == SUCCESS) out->free = out->total - out->used;
    return ret;
}
struct margin { u32 version; int margin; };
API ret_t nvmlDeviceGetMarginTemperature(struct device *device, struct margin *out) {
    ENTER(device);
    CHECK_VERSION(out, 1);
    return get_u32(device, "margin", (u32 *)&out->margin);
}
struct temperature { u32 version, sensor; int temperature; };
API ret_t nvmlDeviceGetTemperatureV(struct device *device, struct temperature *out) {
    ENTER(device);
    CHECK_VERSION(out, 1);
    return get_u32(device, "temperature_v0", (u32 *)&out->temperature);
}
struct histogram { u32 max, high, partial, low, none; };
API ret_t nvmlDeviceGetRowRemapperHistogram(struct device *device, struct histogram *out) {
    ENTER(device);
    char found[128];
    if (!look_up_of(device->gpu, "remap_banks", found, sizeof found)) return NOT_SUPPORTED;
    return sscanf(found, "%u %u %u %u %u", &out->max, &out->high, &out->partial, &out->low,
                  &out->none) == 5 ? SUCCESS : UNKNOWN;
}
struct fabric { u32 version; unsigned char cluster[16]; int status; u32 clique; unsigned char state; u32 health; };
API ret_t nvmlDeviceGetGpuFabricInfoV(struct device *device, struct fabric *out) {
    ENTER(device);
    CHECK_VERSION(out, 2);
    char found[96];
    u32 state;
    if (!look_up_of(device->gpu, "fabric", found, sizeof found)) return NOT_SUPPORTED;
    if (sscanf(found, "%u %d %x", &state, &out->status, &out->health) != 3) return UNKNOWN;
    out->state = (unsigned char)state;
    return SUCCESS;
}
struct sram { u32 version; u64 counters[11]; u32 threshold_exceeded; };
API ret_t nvmlDeviceGetSramEccErrorStatus(struct device *device, struct sram *out) {
    ENTER(device);
    CHECK_VERSION(out, 1);
    return get_u32(device, "sram_threshold_exceeded", &out->threshold_exceeded);
}
struct unrepairable { u32 version, unrepairable; };
API ret_t nvmlDeviceGetUnrepairableMemoryFlag_v1(struct device *device, struct unrepairable *out) {
    ENTER(device);
    CHECK_VERSION(out, 1);
    return get_u32(device, "unrepairable_memory", &out->unrepairable);
}

struct licence {
    int code;
    u32 state;
    char info[128], product[128];
    u32 enabled;
    struct { u32 year; unsigned short month, day, hour, min, sec; unsigned char status; } expiry;
};
struct licences { int supported; u32 count; struct licence features[3]; };
API ret_t nvmlDeviceGetGridLicensableFeatures_v4(struct device *device, struct licences *out) {
    ENTER(device);
    memset(out, 0, sizeof *out);
    if (get_u32(device, "vgpu_license", &out->features[0].state) != SUCCESS) return SUCCESS;
    out->supported = 1;
    out->count = 1;
    return SUCCESS;
}

/* ---- field values: key `f<id>` or `f<id>.<scope>`, value `[type:]number` -------------------- */

struct field {
    u32 id, scope;
    int64_t timestamp, latency;
    u32 type;
    ret_t ret;
    union { double d; int si; u32 ui; unsigned long ul; u64 ull; long long sll; unsigned short us; } value;
};

static void fill_field(struct device *device, struct field *field) {
    char key[NAME], found[64];
    snprintf(key, sizeof key, field->scope ? "f%u.%u" : "f%u", field->id, field->scope);
    if (!look_up_of(device->gpu, key, found, sizeof found)) {
        field->ret = NOT_SUPPORTED;
        return;
    }
    char *colon = strchr(found, ':');
    const char *value = colon ? colon + 1 : found;
    if (colon) *colon = '\0';
    const char *type = colon ? found : "ull";
    field->ret = SUCCESS;
    field->timestamp = 1;
    memset(&field->value, 0, sizeof field->value);
    if (strcmp(type, "err") == 0) field->ret = atoi(value);
    else if (strcmp(type, "d") == 0) { field->type = 0; field->value.d = strtod(value, NULL); }
    else if (strcmp(type, "ui") == 0) { field->type = 1; field->value.ui = (u32)strtoul(value, NULL, 0); }
    else if (strcmp(type, "ul") == 0) { field->type = 2; field->value.ul = strtoul(value, NULL, 0); }
    else if (strcmp(type, "sll") == 0) { field->type = 4; field->value.sll = strtoll(value, NULL, 0); }
    else if (strcmp(type, "si") == 0) { field->type = 5; field->value.si = (int)strtol(value, NULL, 0); }
    else { field->type = 3; field->value.ull = strtoull(value, NULL, 0); }
}

static int is_tlimit(u32 id) { return id >= 193 && id <= 196; }
API ret_t nvmlDeviceGetFieldValues(struct device *device, int count, struct field *fields) {
    ENTER(device);
    /* As driver 580: T.Limit fields beside others are left as they are, with ret SUCCESS. */
    int others = 0;
    for (int i = 0; i < count; i++) others += !is_tlimit(fields[i].id);
    for (int i = 0; i < count; i++)
        if (!others || !is_tlimit(fields[i].id)) fill_field(device, &fields[i]);
    return SUCCESS;
}

/* ---- MIG --------------------------------------------------------------------------------- */

API ret_t nvmlDeviceGetMaxMigDeviceCount(struct device *device, u32 *out) {
    ENTER(device);
    *out = 7;
    return SUCCESS;
}
API ret_t nvmlDeviceGetMigDeviceHandleByIndex(struct device *device, u32 index, struct device **out) {
    ENTER(device);
    char key[NAME], found[96];
    snprintf(key, sizeof key, "mig%u.uuid", index);
    if (index >= MAX_MIG) return INVALID_ARGUMENT;
    if (!look_up_of(device->gpu, key, found, sizeof found)) return NOT_FOUND;
    *out = handle_of(device->gpu, (int)index);
    return SUCCESS;
}
static ret_t mig_number(struct device *device, const char *name, u32 *out) {
    char key[NAME];
    if (device->mig < 0) return INVALID_ARGUMENT;
    snprintf(key, sizeof key, "mig%d.%s", device->mig, name);
    return get_u32(device, key, out);
}
API ret_t nvmlDeviceGetGpuInstanceId(struct device *device, u32 *out) {
    ENTER(device);
    return mig_number(device, "gi", out);
}
API ret_t nvmlDeviceGetComputeInstanceId(struct device *device, u32 *out) {
    ENTER(device);
    return mig_number(device, "ci", out);
}

/* ---- processes: keys `<kind><n>` as `compute0`, value `pid memory gi ci [sm_util]` ----------- */

struct process { u32 pid; u64 memory; u32 gi, ci; };

static int read_process(int gpu, const char *kind, u32 index, struct process *out, u32 *util) {
    char key[NAME], found[128];
    snprintf(key, sizeof key, "%s%u", kind, index);
    if (!look_up_of(gpu, key, found, sizeof found)) return 0;
    *util = 0;
    return sscanf(found, "%u %llu %u %u %u", &out->pid, &out->memory, &out->gi, &out->ci, util) >= 4;
}
static ret_t list_processes(int gpu, const char *kind, u32 *count, struct process *out) {
    u32 found = 0, util;
    struct process process;
    while (read_process(gpu, kind, found, &process, &util)) {
        if (out && found < *count) out[found] = process;
        found++;
    }
    ret_t ret = found > *count || (found && !out) ? INSUFFICIENT_SIZE : SUCCESS;
    *count = found;
    return ret;
}
#define PROCESS_LIST(function, kind)                                                      \
    API ret_t function(struct device *device, u32 *count, struct process *out) {          \
        ENTER(device);                                                                    \
        return list_processes(device->gpu, kind, count, out);                             \
    }
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v3, "compute")
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, "graphics")
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, "mps")

struct sample { u32 pid; u64 at; u32 sm, memory, encoder, decoder; };
API ret_t nvmlDeviceGetProcessUtilization(struct device *device, struct sample *out, u32 *count, u64 since) {
    ENTER(device);
    struct process process;
    u32 found = 0, util;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    u64 at = (u64)now.tv_sec * 1000000u + (u64)now.tv_nsec / 1000u;
    while (read_process(device->gpu, "compute", found, &process, &util)) {
        if (out && found < *count) out[found] = (struct sample){process.pid, at, util, 0, 0, 0};
        found++;
    }
    (void)since;
    if (!found) return NOT_FOUND;
    ret_t ret = !out || found > *count ? INSUFFICIENT_SIZE : SUCCESS;
    *count = found;
    return ret;
}

/* ---- events ------------------------------------------------------------------------------ */

struct event { struct device *device; u64 type, data; u32 gi, ci; };
struct event_set { long offset; u64 masks[MAX_GPUS]; };

static FILE *open_events(void) {
    char path[4096];
    if (!script_path()) return NULL;
    snprintf(path, sizeof path, "%s.events", script_path());
    return fopen(path, "re");
}
API ret_t nvmlEventSetCreate(struct event_set **out) {
    ret_t ret = before(__func__, -1);
    if (ret != SUCCESS) return ret;
    struct event_set *set = calloc(1, sizeof *set);
    if (!set) return MEMORY;
    FILE *file = open_events();
    if (file) {
        /* As with the driver, only what happens from now on is reported. */
        if (fseek(file, 0, SEEK_END) == 0) set->offset = ftell(file);
        fclose(file);
    }
    *out = set;
    return SUCCESS;
}
API ret_t nvmlDeviceRegisterEvents(struct device *device, u64 types, struct event_set *set) {
    ENTER(device);
    u64 supported = 0;
    if (get_u64(device, "event_types", &supported) != SUCCESS || types & ~supported) return NOT_SUPPORTED;
    set->masks[device->gpu] |= types;
    return SUCCESS;
}
/* The next event of a registered type; 0 when there is none yet. */
static int next_event(struct event_set *set, struct event *out) {
    int found = 0, gpu;
    FILE *file = open_events();
    if (!file) return 0;
    char line[256];
    if (fseek(file, set->offset, SEEK_SET) != 0) { fclose(file); return 0; }
    while (!found && fgets(line, sizeof line, file) && strchr(line, '\n')) {
        set->offset = ftell(file);
        if (sscanf(line, "%d %llx %llu %u %u", &gpu, &out->type, &out->data, &out->gi, &out->ci) != 5)
            continue;
        if (gpu < 0 || gpu >= MAX_GPUS || !(set->masks[gpu] & out->type)) continue;
        out->device = handle_of(gpu, -1);
        found = 1;
    }
    fclose(file);
    return found;
}
API ret_t nvmlEventSetWait_v2(struct event_set *set, struct event *out, u32 timeout_ms) {
    long end = now_ms() + (long)timeout_ms;
    int watch = watch_folder();
    ret_t ret;
    for (;;) {
        ret = before(__func__, -1);
        if (ret != SUCCESS || next_event(set, out)) break;
        long left = end - now_ms();
        ret = TIMEOUT;
        if (left <= 0) break;
        wait_for_change(watch, left);
    }
    if (watch >= 0) close(watch);
    return ret;
}
API ret_t nvmlEventSetFree(struct event_set *set) {
    free(set);
    return SUCCESS;
}

/* ---- GPM: keys `gpm` (1 = supported), `gpm<id>`, and with MIG on `gi<n>.gpm<id>` ---------- */

struct gpm_support { u32 version, supported; };
struct gpm_metric { u32 id; ret_t ret; double value; const char *names[3]; };
struct gpm_metrics { u32 version, count; void *samples[2]; struct gpm_metric metrics[]; };
struct gpm_sample { int gpu, gi; };

API ret_t nvmlGpmQueryDeviceSupport(struct device *device, struct gpm_support *out) {
    ENTER(device);
    if (out->version != 1) return ARGUMENT_VERSION_MISMATCH;
    u32 supported = 0;
    (void)get_u32(device, "gpm", &supported);
    out->supported = supported;
    return SUCCESS;
}
API ret_t nvmlGpmSampleAlloc(struct gpm_sample **out) {
    *out = malloc(sizeof **out);
    if (!*out) return MEMORY;
    (*out)->gpu = -1;
    return SUCCESS;
}
API ret_t nvmlGpmSampleFree(struct gpm_sample *sample) {
    free(sample);
    return SUCCESS;
}
API ret_t nvmlGpmSampleGet(struct device *device, struct gpm_sample *sample) {
    ENTER(device);
    if (number_of(device, "mig_current")) return NOT_SUPPORTED;
    sample->gpu = device->gpu;
    sample->gi = -1;
    return SUCCESS;
}
API ret_t nvmlGpmMigSampleGet(struct device *device, u32 gi, struct gpm_sample *sample) {
    ENTER(device);
    if (!number_of(device, "mig_current")) return NOT_SUPPORTED;
    sample->gpu = device->gpu;
    sample->gi = (int)gi;
    return SUCCESS;
}
API ret_t nvmlGpmMetricsGet(struct gpm_metrics *out) {
    struct gpm_sample *one = out->samples[0], *two = out->samples[1];
    if (out->version != 1) return ARGUMENT_VERSION_MISMATCH;
    if (!one || !two || one->gpu < 0 || one->gpu != two->gpu || one->gi != two->gi) return INVALID_ARGUMENT;
    ret_t ret = before(__func__, one->gpu);
    for (u32 i = 0; ret == SUCCESS && i < out->count; i++) {
        char key[NAME], found[64];
        if (one->gi < 0) snprintf(key, sizeof key, "gpm%u", out->metrics[i].id);
        else snprintf(key, sizeof key, "gi%d.gpm%u", one->gi, out->metrics[i].id);
        int there = look_up_of(one->gpu, key, found, sizeof found);
        out->metrics[i].ret = there ? SUCCESS : NOT_SUPPORTED;
        out->metrics[i].value = there ? strtod(found, NULL) : 0;
    }
    return ret;
}
