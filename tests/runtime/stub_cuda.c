// A stand-in for libcuda.so.1 whose device is the host: cuda-python's own bindings run on it, so
// that what runtime/devices/cuda.py hands them is tested without a GPU. Each call is compared with
// what the driver's documentation demands; what breaks it is told on stderr as VIOLATION, and the
// call fails. Kernels do nothing but for "add_one" (y = x + 1) and "add" (z = x + y) over four
// floats, and the entries that copy boxes for exchanges. With STUB_QUIET set, nothing else is told; with STUB_FAST set, nothing is checked either.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int Result;
typedef uint64_t Address;
typedef void *Handle;
enum { SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, INVALID_PTX = 218, INVALID_HANDLE = 400, NOT_FOUND = 500 };
static int quiet, fast, violations;
__attribute__((constructor)) static void begin(void) {
    fast = getenv("STUB_FAST") != NULL;
    quiet = fast || getenv("STUB_QUIET") != NULL;
}
#define TELL(...) (quiet ? 0 : (fprintf(stderr, __VA_ARGS__), fputc('\n', stderr)))
#define VIOLATION(...) \
    (violations++, fprintf(stderr, "VIOLATION "), fprintf(stderr, __VA_ARGS__), \
     fputc('\n', stderr), INVALID_VALUE)
#define DEMAND(holds, ...) do { if (!fast && !(holds)) return VIOLATION(__VA_ARGS__); } while (0)
int stub_violations(void) { return violations; }  // for tests

// Handles of each kind are remembered, so that one of another kind, or one that is gone, is found.
enum { CONTEXT = 1, POOL, STREAM, EVENT, TIMED, MODULE, GRAPH, EXECUTABLE, KINDS };
static const char *KIND[] = {"", "context", "pool", "stream", "event", "event", "module", "graph",
                             "executable graph"};
typedef struct { unsigned char kind, recorded; } Known;
static Known *known;
static size_t room = 0x1000, next_handle = 0x1000;
static Result new_handle(Handle *made, int kind) {
    if (next_handle >= room || !known) {
        known = realloc(known, 2 * room * sizeof *known);
        memset(known + (known ? room : 0), 0, room * sizeof *known);
        room *= 2;
    }
    known[next_handle] = (Known){kind, 0};
    *made = (Handle)next_handle++;
    return SUCCESS;
}
static int is(Handle handle, int kind) {
    uintptr_t at = (uintptr_t)handle;
    if (at < 0x1000 || at >= next_handle) return 0;
    return known[at].kind == kind || (kind == EVENT && known[at].kind == TIMED);
}
static void forget(Handle handle) { known[(uintptr_t)handle].kind = 0; }
// 0, 1 and 2 are the default streams of old and of each thread, which any context has.
#define DEMAND_STREAM(s) DEMAND((uintptr_t)(s) <= 2 || is(s, STREAM), "%s: no stream %p", __func__, s)
#define DEMAND_HANDLE(h, kind) DEMAND(is(h, kind), "%s: no %s %p", __func__, KIND[kind], h)

// The device.
static int current;  // contexts on the thread's stack
#define DEMAND_CONTEXT() DEMAND(current > 0, "%s: no context is current", __func__)
Result cuInit(unsigned flags) { DEMAND(!flags, "cuInit: flags %u", flags); return SUCCESS; }
static int driver_version(void) {
    const char *version = getenv("STUB_VERSION");
    return version ? atoi(version) : 13000;
}
Result cuDriverGetVersion(int *version) { *version = driver_version(); return SUCCESS; }
// Each process has a GPU of its own, but with STUB_ONE_GPU.
Result cuDeviceGetUuid_v2(unsigned char *found, int device) {
    static const char *numbers[] = {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"};
    memset(found, 7, 16);
    for (int i = 0; i < 4 && !getenv("STUB_ONE_GPU"); i++)
        if (getenv(numbers[i])) found[0] = atoi(getenv(numbers[i]));
    return SUCCESS;
}
Result cuDeviceGetUuid(unsigned char *found, int device) { return cuDeviceGetUuid_v2(found, device); }
Result cuDeviceGetCount(int *count) { *count = 1; return SUCCESS; }
Result cuDeviceGet(int *device, int ordinal) {
    DEMAND(!ordinal, "cuDeviceGet: device %d", ordinal);
    *device = ordinal;
    return SUCCESS;
}
Result cuDeviceGetName(char *name, int room, int device) {
    snprintf(name, room, "Stub GPU");
    return SUCCESS;
}
Result cuDeviceGetAttribute(int *value, int which, int device) {
    enum { MULTIPROCESSORS = 16, MAJOR = 75, MINOR = 76, COOPERATIVE = 95, SHARED = 97 };
    const char *count = getenv("STUB_MULTIPROCESSORS"), *major = getenv("STUB_MAJOR");
    const char *cooperative = getenv("STUB_COOPERATIVE");
    *value = which == MAJOR ? (major ? atoi(major) : 9)
             : which == MINOR ? 0
             : which == SHARED ? (major && atoi(major) < 9 ? 166912 : 232448)
             : which == COOPERATIVE ? (cooperative ? atoi(cooperative) : 1)
             : which == MULTIPROCESSORS ? (count ? atoi(count) : 132) : 1;
    return SUCCESS;
}
Result cuDevicePrimaryCtxRetain(Handle *context, int device) { return new_handle(context, CONTEXT); }
Result cuCtxPushCurrent(Handle context) {
    DEMAND_HANDLE(context, CONTEXT);
    __atomic_add_fetch(&current, 1, __ATOMIC_SEQ_CST);
    return SUCCESS;
}
Result cuCtxPopCurrent(Handle *context) {
    DEMAND_CONTEXT();
    __atomic_sub_fetch(&current, 1, __ATOMIC_SEQ_CST);
    *context = (Handle)1;
    return SUCCESS;
}
Result cuCtxSynchronize(void) { DEMAND_CONTEXT(); TELL("synchronize all"); return SUCCESS; }
Result cuDeviceGetDefaultMemPool(Handle *pool, int device) { return new_handle(pool, POOL); }
Result cuMemPoolSetAttribute(Handle pool, int which, uint64_t *value) {
    DEMAND_HANDLE(pool, POOL);
    TELL("pool attribute %d = %llx", which, (unsigned long long)*value);
    return SUCCESS;
}
static size_t held;  // bytes that were given back and lie in the pool
Result cuMemPoolTrimTo(Handle pool, size_t least) {
    DEMAND_HANDLE(pool, POOL);
    TELL("trim to %zu", least);
    held = held < least ? held : least;
    return SUCCESS;
}
Result cuGetErrorString(Result error, const char **text) { *text = "stub"; return SUCCESS; }

// Memory.
enum { BLOCKS = 1 << 14 };
static struct { Address address; size_t size; } blocks[BLOCKS];
static int block_count;
static size_t used;
static int block_of(Address address, size_t size) {
    for (int i = 0; i < block_count; i++)
        if (blocks[i].address <= address && address + size <= blocks[i].address + blocks[i].size)
            return i;
    return -1;
}
// For the stand-in for NCCL.
int stub_is_memory(Address address, size_t size) { return block_of(address, size) >= 0; }
int stub_is_stream(Handle stream) { return is(stream, STREAM); }
#define DEMAND_MEMORY(a, n) \
    DEMAND(!(n) || block_of(a, n) >= 0, "%s: %zu bytes at %llx are in no allocation", __func__, \
           (size_t)(n), (unsigned long long)(a))
static size_t total(void) {
    const char *bytes = getenv("STUB_BYTES");
    return bytes ? strtoull(bytes, NULL, 10) : (size_t)2 << 30;
}
Result cuMemAllocAsync(Address *address, size_t size, Handle stream) {
    DEMAND_CONTEXT();
    DEMAND_STREAM(stream);
    DEMAND(size, "cuMemAllocAsync: 0 bytes");
    if (size > total() || used + held + size > total()) return OUT_OF_MEMORY;
    *address = (Address)aligned_alloc(256, (size + 255) & ~(size_t)255);
    if (block_count == BLOCKS) return OUT_OF_MEMORY;
    blocks[block_count].address = *address;
    blocks[block_count++].size = size;
    used += size;
    return SUCCESS;
}
Result cuMemFreeAsync(Address address, Handle stream) {
    DEMAND_STREAM(stream);
    int i = block_of(address, 1);
    DEMAND(i >= 0 && blocks[i].address == address, "cuMemFreeAsync: %llx is no allocation",
           (unsigned long long)address);
    used -= blocks[i].size;
    held += blocks[i].size;
    blocks[i] = blocks[--block_count];
    free((void *)address);
    return SUCCESS;
}
static void *mapped_block;  // the last one that kernels see
Result cuMemHostAlloc(void **block, size_t size, unsigned flags) {
    enum { DEVICE_MAPPED = 2 };
    DEMAND(size, "cuMemHostAlloc: 0 bytes");
    *block = malloc(size);
    if (flags & DEVICE_MAPPED) mapped_block = *block;
    return SUCCESS;
}
Result cuMemHostGetDevicePointer(Address *address, void *block, unsigned flags) {
    DEMAND(block && block == mapped_block, "cuMemHostGetDevicePointer: %p is not mapped", block);
    *address = (Address)block;
    return SUCCESS;
}
Result cuMemFreeHost(void *block) { free(block); return SUCCESS; }
Result cuMemcpyHtoDAsync(Address target, const void *source, size_t size, Handle stream) {
    DEMAND_STREAM(stream);
    DEMAND_MEMORY(target, size);
    DEMAND(source, "cuMemcpyHtoDAsync: from nowhere");
    memcpy((void *)target, source, size);
    return SUCCESS;
}
Result cuMemcpyDtoHAsync(void *target, Address source, size_t size, Handle stream) {
    DEMAND_STREAM(stream);
    DEMAND_MEMORY(source, size);
    DEMAND(target, "cuMemcpyDtoHAsync: to nowhere");
    memcpy(target, (void *)source, size);
    return SUCCESS;
}
Result cuMemcpyDtoDAsync(Address target, Address source, size_t size, Handle stream) {
    DEMAND_STREAM(stream);
    DEMAND_MEMORY(target, size);
    DEMAND_MEMORY(source, size);
    memmove((void *)target, (void *)source, size);
    return SUCCESS;
}
Result cuMemGetInfo(size_t *unused, size_t *all) {
    *all = total();
    *unused = total() - used - held;
    return SUCCESS;
}

// Order: all is done at once.
Result cuStreamCreate(Handle *stream, unsigned flags) {
    DEMAND_CONTEXT();
    DEMAND(flags <= 1, "cuStreamCreate: flags %u", flags);
    return new_handle(stream, STREAM);
}
Result cuStreamDestroy(Handle stream) {
    DEMAND_HANDLE(stream, STREAM);
    forget(stream);
    return SUCCESS;
}
Result cuStreamSynchronize(Handle stream) { DEMAND_STREAM(stream); return SUCCESS; }
Result cuStreamWaitEvent(Handle stream, Handle event, unsigned flags) {
    DEMAND_STREAM(stream);
    DEMAND_HANDLE(event, EVENT);
    DEMAND(!flags, "cuStreamWaitEvent: flags %u", flags);
    return SUCCESS;
}
Result cuEventCreate(Handle *event, unsigned flags) {
    enum { BLOCKING = 1, NO_TIMING = 2 };
    DEMAND_CONTEXT();
    DEMAND(!(flags & ~3u), "cuEventCreate: flags %u", flags);
    return new_handle(event, flags & NO_TIMING ? EVENT : TIMED);
}
Result cuEventDestroy(Handle event) {
    DEMAND_HANDLE(event, EVENT);
    forget(event);
    return SUCCESS;
}
Result cuEventRecord(Handle event, Handle stream) {
    DEMAND_HANDLE(event, EVENT);
    DEMAND_STREAM(stream);
    known[(uintptr_t)event].recorded = 1;
    return SUCCESS;
}
Result cuEventQuery(Handle event) { DEMAND_HANDLE(event, EVENT); return SUCCESS; }
Result cuEventSynchronize(Handle event) { DEMAND_HANDLE(event, EVENT); return SUCCESS; }
Result cuEventElapsedTime(float *milliseconds, Handle begin, Handle end) {
    DEMAND(is(begin, TIMED) && is(end, TIMED), "cuEventElapsedTime: events without times");
    DEMAND(fast || (known[(uintptr_t)begin].recorded && known[(uintptr_t)end].recorded),
           "cuEventElapsedTime: an event was never recorded");
    *milliseconds = 0.5f;
    return SUCCESS;
}
Result cuEventElapsedTime_v2(float *milliseconds, Handle begin, Handle end) {
    return cuEventElapsedTime(milliseconds, begin, end);
}

// Code. Entries of PTX have the parameters, thread limits and clusters that its text declares.
static const char *COPY = "exchange_copy$";
enum { PARAMETERS = 512, ENTRIES = 4096, NAME = 256 };
typedef struct {
    char name[NAME];
    Handle module;
    int kind;  // 1: add_one, 2: add, 3: sets a condition, 4: counts down, -n: copies boxes of words of n bytes
    int count, sizes[PARAMETERS], alignments[PARAMETERS];
    int threads, cluster, dynamic_shared, wide_clusters;
} Entry;
static Entry *entries[ENTRIES];
static int entry_count;
static int largest_shared(void) {
    int most;
    cuDeviceGetAttribute(&most, 97, 0);
    return most;
}
static int type_bytes(const char *type) {
    const char *digits = type + strcspn(type, "0123456789");
    return atoi(digits) / 8;
}
// Parameters stand as ".param .u64 .ptr .align 16 name" or ".param .align 64 .b8 name[128]".
static void read_parameters(Entry *entry, const char *from, const char *end) {
    const char *at = from;
    while ((at = strstr(at, ".param")) && at < end && entry->count < PARAMETERS) {
        const char *stop = at + strcspn(at, ",)");
        const char *align = strstr(at, ".align"), *bracket = strchr(at, '[');
        const char *type = at + 6 + strspn(at + 6, " \t.");
        int n = entry->count++;
        if (bracket && bracket < stop) {
            entry->alignments[n] = align && align < stop ? atoi(align + 6) : 1;
            entry->sizes[n] = atoi(bracket + 1);
        } else {
            entry->sizes[n] = entry->alignments[n] = type_bytes(type);
        }
        at = stop;
    }
}
static int after(const char *text, const char *end, const char *word) {
    const char *at = strstr(text, word);
    return at && at < end ? atoi(at + strlen(word)) : 0;
}
static void read_entries(Handle module, const char *text) {
    const char *at = text;
    while ((at = strstr(at, ".entry "))) {
        at += 7;
        size_t length = strcspn(at, " (\n\t");
        const char *open = at + strcspn(at, "({"), *body = strchr(at, '{');
        const char *end = *open == '(' ? strchr(open, ')') : open;
        if (length >= NAME || !body || entry_count == ENTRIES) return;
        Entry *entry = entries[entry_count++] = calloc(1, sizeof *entry);
        memcpy(entry->name, at, length);
        entry->module = module;
        static const char *known[] = {"add_one", "add", "girih_set_condition", "count_down", "whole"};
        for (int i = 0; i < 5; i++)
            if (!strcmp(entry->name, known[i])) entry->kind = i + 1;
        if (!strncmp(entry->name, COPY, strlen(COPY))) entry->kind = -atoi(entry->name + strlen(COPY));
        entry->dynamic_shared = 49152;
        read_parameters(entry, open, end);
        entry->threads = after(end, body, ".reqntid ");
        entry->cluster = after(end, body, ".reqnctapercluster ");
        at = body;
    }
}
Result cuModuleLoadDataEx(Handle *module, const char *image, unsigned count, int *keys,
                          void **values) {
    enum { ERROR_LOG = 5 };
    DEMAND_CONTEXT();
    DEMAND(count <= 32 && (!count || (keys && values)), "cuModuleLoadDataEx: %u options", count);
    if (strstr(image, "broken")) {
        for (unsigned i = 0; i < count; i++)
            if (keys[i] == ERROR_LOG) strcpy(values[i], "line 3 is bad");
        return INVALID_PTX;
    }
    TELL("module %.12s", image);
    new_handle(module, MODULE);
    read_entries(*module, image);
    return SUCCESS;
}
Result cuModuleUnload(Handle module) {
    DEMAND_HANDLE(module, MODULE);
    TELL("unload");
    for (int i = 0; i < entry_count; i++)
        if (entries[i]->module == module) {
            free(entries[i]);
            entries[i--] = entries[--entry_count];
        }
    forget(module);
    return SUCCESS;
}
Result cuModuleGetFunction(Handle *found, Handle module, const char *name) {
    DEMAND_HANDLE(module, MODULE);
    for (int i = 0; i < entry_count; i++)
        if (entries[i]->module == module && !strcmp(entries[i]->name, name)) {
            *found = entries[i];
            return SUCCESS;
        }
    return NOT_FOUND;
}
static int is_entry(Handle handle) {
    for (int i = 0; i < entry_count; i++)
        if (entries[i] == handle) return 1;
    return fast;
}
#define DEMAND_ENTRY(e) DEMAND(is_entry(e), "%s: no function %p", __func__, e)
enum { SHARED_ATTRIBUTE = 8, WIDE_ATTRIBUTE = 14 };
Result cuFuncGetAttribute(int *value, int which, Handle handle) {
    DEMAND_ENTRY(handle);
    *value = ((Entry *)handle)->dynamic_shared;
    return SUCCESS;
}
Result cuFuncSetAttribute(Handle handle, int which, int value) {
    DEMAND_ENTRY(handle);
    TELL("attribute %d = %d", which, value);
    DEMAND(which != SHARED_ATTRIBUTE || value <= largest_shared(),
           "cuFuncSetAttribute: %d bytes of shared memory, a block has %d", value, largest_shared());
    if (which == SHARED_ATTRIBUTE) ((Entry *)handle)->dynamic_shared = value;
    if (which == WIDE_ATTRIBUTE) ((Entry *)handle)->wide_clusters = value;
    return SUCCESS;
}
Result cuFuncGetParamInfo(Handle handle, size_t index, size_t *offset, size_t *size) {
    Entry *entry = handle;
    DEMAND_ENTRY(handle);
    if (index >= (size_t)entry->count) return INVALID_VALUE;  // as documented: there is none
    size_t end = 0;
    for (size_t i = 0;; i++) {
        int a = entry->alignments[i] ? entry->alignments[i] : 1;
        end = (end + a - 1) / a * a;
        if (i == index) {
            *offset = end;
            *size = entry->sizes[i];
            return SUCCESS;
        }
        end += entry->sizes[i];
    }
}

typedef struct { int id; char padding[4]; unsigned value[16]; } Attribute;
typedef struct {
    unsigned grid[3], block[3], shared;
    Handle stream;
    Attribute *attributes;
    unsigned count;
} Config;
typedef struct { unsigned char *target, *source; unsigned sizes[4]; int64_t to[3], from[3]; } Box;
struct Graph;
typedef struct { uint64_t handle; unsigned char *address; unsigned size, arm, arms; } Setting;
typedef struct {
    int kind;
    float *memory[3];
    Box box;
    Setting setting;
    Entry *entry;
    unsigned cluster, grid[3], block[3], shared;
    struct Graph *body;  // of a conditional node
    uint64_t handle;
    int loop;
} Node;
enum { NODES = 4096 };
typedef struct { int from, to; } Edge;
typedef struct Graph {
    int count, edge_count;
    Node nodes[NODES];
    Edge *edges;
    Handle handle;
    struct Graph *source, *root;
} Graph;

// Conditions of conditional nodes.
enum { CONDITIONS = 1 << 14, FIRST_CONDITION = 0x50000 };
static struct { Graph *graph; unsigned value; int set, used; } conditions[CONDITIONS];
static int condition_count;
#define KNOWN_CONDITION(h) ((h) - FIRST_CONDITION < (uint64_t)condition_count)
static void set_condition(const Setting *one) {
    if (!KNOWN_CONDITION(one->handle)) {
        VIOLATION("a condition is set that is none, %llx", (unsigned long long)one->handle);
        return;
    }
    unsigned value = 0;
    if (one->address) {
        unsigned found = one->size == 1 ? *one->address : *(unsigned *)one->address;
        value = (found < one->arms - 1 ? found : one->arms - 1) == one->arm;
    }
    conditions[one->handle - FIRST_CONDITION].value = value;
    conditions[one->handle - FIRST_CONDITION].set = 1;
}

static unsigned volume(const unsigned *extent) { return extent[0] * extent[1] * extent[2]; }
static Result check_launch(const char *what, Entry *entry, const unsigned *grid,
                           const unsigned *block, unsigned shared, const unsigned *cluster,
                           void **parameters, void **extra) {
    static const unsigned ones[3] = {1, 1, 1};
    DEMAND(is_entry(entry), "%s: no function %p", what, (void *)entry);
    DEMAND(volume(block) && volume(block) <= 1024 && block[0] <= 1024 && block[1] <= 1024 &&
               block[2] <= 64, "%s: a block of %u,%u,%u threads", what, block[0], block[1], block[2]);
    DEMAND(grid[0] && grid[1] && grid[2] && grid[0] <= 0x7fffffff && grid[1] <= 65535 &&
               grid[2] <= 65535, "%s: a grid of %u,%u,%u blocks", what, grid[0], grid[1], grid[2]);
    DEMAND(!entry->threads || entry->threads == (int)volume(block),
           "%s: %s is compiled for %d threads, %u are started", what, entry->name, entry->threads,
           volume(block));
    DEMAND((int)shared <= entry->dynamic_shared,
           "%s: %s asks for %u bytes of shared memory, its attribute allows %d", what, entry->name,
           shared, entry->dynamic_shared);
    cluster = cluster ? cluster : ones;
    DEMAND(volume(cluster) && volume(cluster) <= 16, "%s: a cluster of %u blocks", what,
           volume(cluster));
    DEMAND(volume(cluster) <= 8 || entry->wide_clusters,
           "%s: %s runs in clusters of %u, which its attribute does not allow", what, entry->name,
           volume(cluster));
    for (int i = 0; i < 3; i++)
        DEMAND(grid[i] % cluster[i] == 0, "%s: a grid of %u blocks in clusters of %u", what, grid[i],
               cluster[i]);
    DEMAND(!entry->cluster || entry->cluster == (int)volume(cluster),
           "%s: %s is compiled for clusters of %d, not %u", what, entry->name, entry->cluster,
           volume(cluster));
    DEMAND(!extra, "%s: parameters in two forms", what);
    for (int i = 0; i < entry->count; i++) {
        DEMAND(parameters[i], "%s: %s has %d parameters, %d are given", what, entry->name,
               entry->count, i);
        DEMAND((uintptr_t)parameters[i] % entry->alignments[i] == 0,
               "%s: parameter %d of %s lies at %p, not at a multiple of %d", what, i, entry->name,
               parameters[i], entry->alignments[i]);
    }
    return SUCCESS;
}
static void copy_box(const Box *box, size_t word) {
    const unsigned *n = box->sizes;
    size_t row = n[3] * word;
    for (unsigned i = 0; i < n[0]; i++) for (unsigned j = 0; j < n[1]; j++) for (unsigned k = 0; k < n[2]; k++) {
        int64_t to = i * box->to[0] + j * box->to[1] + k * box->to[2];
        int64_t from = i * box->from[0] + j * box->from[1] + k * box->from[2];
        unsigned char *target = box->target + to * (int64_t)word;
        if ((uintptr_t)target % word || block_of((Address)target, row) < 0) {
            VIOLATION("a box is copied to %p, %zu bytes in words of %zu", target, row, word);
            return;
        }
        if (!box->source) { memset(target, 0, row); continue; }
        unsigned char *source = box->source + from * (int64_t)word;
        if ((uintptr_t)source % word || block_of((Address)source, row) < 0) {
            VIOLATION("a box is copied from %p, %zu bytes in words of %zu", source, row, word);
            return;
        }
        memcpy(target, source, row);
    }
}
static void run(const Node *node) {
    if (node->kind < 0) {
        copy_box(&node->box, -node->kind);
        return;
    }
    if (node->kind == 3) {
        set_condition(&node->setting);
        return;
    }
    if (node->kind == 5) {  // add_one twice, of a table that begins with a barrier and a host's word
        if (*(uint64_t *)node->memory[0] || *(unsigned *)node->memory[1])
            VIOLATION("a persistent launch begins with words that are not 0");
        for (int i = 0; i < 4; i++) node->memory[3][i] = node->memory[2][i] + 1;
        for (int i = 0; i < 4; i++) node->memory[5][i] = node->memory[4][i] + 1;
        return;
    }
    if (node->kind == 4) {  // an i32 and whether it was positive
        int *count = (int *)node->memory[0];
        *(unsigned char *)node->memory[1] = (*count)-- > 0;
        return;
    }
    for (int i = 0; node->kind && i < 4; i++)
        if (node->kind == 1)
            node->memory[1][i] = node->memory[0][i] + 1;
        else
            node->memory[2][i] = node->memory[0][i] + node->memory[1][i];
}
static Node node_of(Entry *entry, const unsigned *grid, const unsigned *block, unsigned shared,
                    void **parameters) {
    Node node = {.entry = entry, .cluster = 1, .shared = shared};
    memcpy(node.grid, grid, sizeof node.grid);
    memcpy(node.block, block, sizeof node.block);
    node.kind = fast ? 0 : entry->kind;
    int floats = node.kind == 4 ? 2 : node.kind == 1 || node.kind == 2 ? node.kind + 1 : 0;
    for (int i = 0; i < floats; i++) node.memory[i] = *(float **)parameters[i];
    static const int places[] = {0, 8, 64, 72, 128, 136};
    for (int i = 0; node.kind == 5 && i < 6; i++)
        node.memory[i] = *(float **)((char *)parameters[0] + places[i]);
    if (node.kind == 3) {
        node.setting.handle = *(uint64_t *)parameters[0];
        node.setting.address = *(unsigned char **)parameters[1];
        node.setting.size = *(unsigned *)parameters[2];
        node.setting.arm = *(unsigned *)parameters[3];
        node.setting.arms = *(unsigned *)parameters[4];
    }
    if (node.kind < 0) {
        node.box.target = *(unsigned char **)parameters[0];
        node.box.source = *(unsigned char **)parameters[1];
        for (int i = 0; i < 4; i++) node.box.sizes[i] = *(unsigned *)parameters[2 + i];
        for (int i = 0; i < 3; i++) node.box.to[i] = *(int64_t *)parameters[6 + i];
        for (int i = 0; i < 3; i++) node.box.from[i] = *(int64_t *)parameters[9 + i];
    }
    return node;
}
enum { COOPERATIVE_LAUNCH = 2, CLUSTER_DIMENSION = 4, TOO_LARGE = 720 };
Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int *count, Handle entry, int threads,
                                                   size_t shared) {
    DEMAND_ENTRY(entry);
    *count = threads <= 1024 && (int)shared <= largest_shared() ? 1 : 0;
    return SUCCESS;
}
Result cuLaunchKernelEx(const Config *config, Handle handle, void **parameters, void **extra) {
    const unsigned *cluster = NULL;
    DEMAND_CONTEXT();
    DEMAND_STREAM(config->stream);
    for (unsigned i = 0; i < config->count; i++) {
        if (config->attributes[i].id == COOPERATIVE_LAUNCH) {
            int multiprocessors;
            cuDeviceGetAttribute(&multiprocessors, 16, 0);
            if (config->attributes[i].value[0] && volume(config->grid) > multiprocessors) return TOO_LARGE;
            TELL("cooperative %u", config->attributes[i].value[0]);
            continue;
        }
        DEMAND(config->attributes[i].id == CLUSTER_DIMENSION, "cuLaunchKernelEx: attribute %d",
               config->attributes[i].id);
        cluster = config->attributes[i].value;
    }
    Result wrong = check_launch("cuLaunchKernelEx", handle, config->grid, config->block,
                                config->shared, cluster, parameters, extra);
    if (wrong) return wrong;
    TELL("launch %u,%u,%u of %u, shared %u, cluster %u", config->grid[0], config->grid[1],
         config->grid[2], config->block[0], config->shared, cluster ? cluster[0] : 0);
    Node node = node_of(handle, config->grid, config->block, config->shared, parameters);
    run(&node);
    return SUCCESS;
}
typedef struct {
    Handle entry;
    unsigned grid[3], block[3], shared;
    void **parameters, **extra;
    Handle kernel, context;
} Parameters;
Result cuGraphCreate(Handle *made, unsigned flags) {
    DEMAND(!flags, "cuGraphCreate: flags %u", flags);
    Graph *graph = *made = calloc(1, sizeof(Graph));
    graph->root = graph;
    return new_handle(&graph->handle, GRAPH);
}
#define DEMAND_GRAPH(g, kind) DEMAND(g && is((g)->handle, kind), "%s: no %s", __func__, KIND[kind])
static Result add_edges(const char *what, Graph *graph, const Handle *before, size_t count) {
    for (size_t i = 0; i < count; i++) {
        size_t number = ((uintptr_t)before[i] - (uintptr_t)graph->nodes) / sizeof(Node);
        DEMAND(number < graph->count, "%s: it follows no node of the graph", what);
        for (size_t j = 0; j < i; j++) DEMAND(before[i] != before[j], "%s: it follows a node twice", what);
    }
    graph->edges = realloc(graph->edges, (graph->edge_count + count) * sizeof(Edge));
    for (size_t i = 0; i < count; i++)
        graph->edges[graph->edge_count++] = (Edge){(Node *)before[i] - graph->nodes, graph->count};
    return SUCCESS;
}
// A node's handle is its place in the graph that it was added to.
Result cuGraphAddKernelNode(Handle *made, Handle handle, const Handle *before, size_t count,
                            const Parameters *given) {
    Graph *graph = handle;
    DEMAND_GRAPH(graph, GRAPH);
    if (graph->count == NODES) return OUT_OF_MEMORY;
    // The cluster is an attribute, which comes later: what is compiled in stands for it.
    unsigned cluster[3] = {((Entry *)given->entry)->cluster, 1, 1};
    Result wrong = check_launch("cuGraphAddKernelNode", given->entry, given->grid, given->block,
                                given->shared, !fast && cluster[0] ? cluster : NULL,
                                given->parameters, given->extra);
    if (wrong) return wrong;
    TELL("node %u,%u,%u of %u, shared %u", given->grid[0], given->grid[1], given->grid[2],
         given->block[0], given->shared);
    graph->nodes[graph->count] =
        node_of(given->entry, given->grid, given->block, given->shared, given->parameters);
    wrong = add_edges("cuGraphAddKernelNode", graph, before, count);
    if (wrong) return wrong;
    *made = &graph->nodes[graph->count++];
    return SUCCESS;
}
Result cuGraphConditionalHandleCreate(uint64_t *made, Handle handle, Handle context,
                                      unsigned value, unsigned flags) {
    DEMAND_GRAPH((Graph *)handle, GRAPH);
    DEMAND_HANDLE(context, CONTEXT);
    DEMAND(flags <= 1 && (flags || !value), "cuGraphConditionalHandleCreate: flags %u", flags);
    if (condition_count == CONDITIONS) return OUT_OF_MEMORY;
    conditions[condition_count].graph = handle;
    *made = FIRST_CONDITION + condition_count++;
    return SUCCESS;
}
typedef struct {
    int type, reserved[3];
    uint64_t handle;
    int kind;
    unsigned size;
    Graph **bodies;
    Handle context;
} NodeParameters;
enum { CONDITIONAL = 13, IF = 0, WHILE = 1 };
Result cuGraphAddNode(Handle *made, Handle handle, const Handle *before, const void *data,
                      size_t count, NodeParameters *given) {
    Graph *graph = handle;
    DEMAND_GRAPH(graph, GRAPH);
    DEMAND(!data, "cuGraphAddNode: edges with data");
    DEMAND(given->type == CONDITIONAL && (given->kind == IF || given->kind == WHILE) && given->size == 1,
           "cuGraphAddNode: type %d, conditional type %d of size %u", given->type, given->kind, given->size);
    DEMAND_HANDLE(given->context, CONTEXT);
    DEMAND(KNOWN_CONDITION(given->handle), "cuGraphAddNode: no condition %llx", (unsigned long long)given->handle);
    int number = given->handle - FIRST_CONDITION;
    DEMAND(conditions[number].graph == graph->root, "cuGraphAddNode: a condition of another graph");
    DEMAND(!conditions[number].used++, "cuGraphAddNode: a condition of two nodes");
    if (graph->count == NODES) return OUT_OF_MEMORY;
    Result wrong = add_edges("cuGraphAddNode", graph, before, count);
    if (wrong) return wrong;
    Node *node = &graph->nodes[graph->count++];
    Graph **body = malloc(sizeof *body);  // as long as the node
    Handle own;
    cuGraphCreate(&own, 0);
    *body = own;
    (*body)->root = graph->root;
    *node = (Node){.handle = given->handle, .loop = given->kind == WHILE, .body = *body, .cluster = 1};
    given->bodies = body;
    TELL("conditional %s", node->loop ? "while" : "if");
    *made = node;
    return SUCCESS;
}
Result cuGraphKernelNodeSetAttribute(Handle node, int which, const unsigned *value) {
    TELL("node attribute %d = %u", which, value[0]);
    DEMAND(which == CLUSTER_DIMENSION, "cuGraphKernelNodeSetAttribute: attribute %d", which);
    ((Node *)node)->cluster = volume(value);
    return SUCCESS;
}
Result cuGraphInstantiateWithFlags(Handle *made, Handle handle, uint64_t flags) {
    Graph *graph = handle;
    DEMAND_GRAPH(graph, GRAPH);
    for (int i = 0; i < graph->count; i++) {
        if (graph->nodes[i].body) continue;
        int wanted = fast ? 0 : graph->nodes[i].entry->cluster;
        DEMAND(!wanted || wanted == (int)graph->nodes[i].cluster,
               "cuGraphInstantiate: node %d lacks its attribute, clusters of %d", i, wanted);
    }
    Graph *copy = *made = malloc(sizeof(Graph));
    memcpy(copy, graph, sizeof(Graph));
    copy->source = graph;
    for (int i = 0; i < copy->count; i++) {
        Handle body;
        if (!copy->nodes[i].body) continue;
        Result wrong = cuGraphInstantiateWithFlags(&body, copy->nodes[i].body, 0);
        if (wrong) return wrong;
        copy->nodes[i].body = body;
    }
    return new_handle(&copy->handle, EXECUTABLE);
}
// A node of what a graph was made of, in the graph or in one of its bodies.
static Node *copied(Graph *graph, Handle node) {
    size_t number = ((uintptr_t)node - (uintptr_t)graph->source->nodes) / sizeof(Node);
    if (number < graph->count) return &graph->nodes[number];
    for (int i = 0; i < graph->count; i++) {
        Node *found = graph->nodes[i].body ? copied(graph->nodes[i].body, node) : NULL;
        if (found) return found;
    }
    return NULL;
}
Result cuGraphExecKernelNodeSetParams(Handle executable, Handle handle, const Parameters *given) {
    Graph *graph = executable;
    DEMAND_GRAPH(graph, EXECUTABLE);
    // It is named by the node of the graph that this one was made of.
    Node *old = copied(graph, handle);
    DEMAND(old, "cuGraphExecKernelNodeSetParams: no node of the graph");
    DEMAND(fast || given->entry == old->entry,
           "cuGraphExecKernelNodeSetParams: another function than the node's");
    DEMAND(!memcmp(given->grid, old->grid, sizeof old->grid) || fast || old->cluster == 1,
           "cuGraphExecKernelNodeSetParams: another grid of clusters");
    unsigned cluster[3] = {old->cluster, 1, 1};
    Result wrong = check_launch("cuGraphExecKernelNodeSetParams", given->entry, given->grid,
                                given->block, given->shared, cluster, given->parameters,
                                given->extra);
    if (wrong) return wrong;
    TELL("rebind %d", (int)(old - graph->nodes));
    unsigned kept = old->cluster;
    if (!fast)
        *old = node_of(given->entry, given->grid, given->block, given->shared, given->parameters);
    old->cluster = kept;
    return SUCCESS;
}
Result cuGraphExecKernelNodeSetParams_v2(Handle executable, Handle node, const Parameters *given) {
    return cuGraphExecKernelNodeSetParams(executable, node, given);
}
Result cuGraphDestroy(Handle handle) {
    DEMAND_GRAPH((Graph *)handle, GRAPH);
    forget(((Graph *)handle)->handle);
    free(handle);
    return SUCCESS;
}
Result cuGraphExecDestroy(Handle handle) {
    DEMAND_GRAPH((Graph *)handle, EXECUTABLE);
    forget(((Graph *)handle)->handle);
    free(handle);
    return SUCCESS;
}
// The last nodes first, as far as they need not follow others.
static void run_graph(Graph *graph) {
    int *missing = calloc(graph->count, sizeof *missing);
    for (int e = 0; e < graph->edge_count; e++) missing[graph->edges[e].to]++;
    for (int ran = 0; ran < graph->count; ran++) {
        int i = graph->count - 1;
        while (missing[i]) i--;
        Node *node = &graph->nodes[i];
        if (node->body) {
            int number = node->handle - FIRST_CONDITION;
            if (!conditions[number].set) VIOLATION("a condition is asked for that nothing has set");
            if (node->loop) while (conditions[number].value) run_graph(node->body);
            else if (conditions[number].value) run_graph(node->body);
            conditions[number].set = 0;
        } else {
            run(node);
        }
        missing[i] = -1;
        for (int e = 0; e < graph->edge_count; e++)
            if (graph->edges[e].from == i) missing[graph->edges[e].to]--;
    }
    free(missing);
}
Result cuGraphLaunch(Handle handle, Handle stream) {
    Graph *graph = handle;
    DEMAND_STREAM(stream);
    DEMAND_GRAPH(graph, EXECUTABLE);
    TELL("replay %d, edges %d", graph->count, graph->edge_count);
    if (!fast) run_graph(graph);
    return SUCCESS;
}
static const int ELEMENT_BYTES[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};  // of UINT8 .. TFLOAT32_FTZ
Result cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *address,
                              const uint64_t *dims, const uint64_t *strides, const unsigned *box,
                              const unsigned *steps, int interleave, int swizzle, int promotion,
                              int fill) {
    static const unsigned SPAN[] = {0, 32, 64, 128};
    const char *me = "cuTensorMapEncodeTiled";
    DEMAND((uintptr_t)map % 64 == 0, "%s: the map lies at %p, not at a multiple of 64", me, map);
    DEMAND(type >= 0 && type <= 12, "%s: element type %d", me, type);
    DEMAND(rank >= 1 && rank <= 5, "%s: rank %u", me, rank);
    DEMAND((uintptr_t)address % 16 == 0, "%s: the array lies at %p, not at a multiple of 16", me,
           address);
    DEMAND(interleave == 0, "%s: interleave %d", me, interleave);
    DEMAND(swizzle >= 0 && swizzle <= 3, "%s: swizzle %d", me, swizzle);
    DEMAND(promotion >= 0 && promotion <= 3 && fill >= 0 && fill <= 1, "%s: promotion %d, fill %d",
           me, promotion, fill);
    for (unsigned i = 0; i < rank; i++) {
        DEMAND(dims[i] && dims[i] <= (uint64_t)1 << 32, "%s: dimension %u has %llu elements", me, i,
               (unsigned long long)dims[i]);
        DEMAND(box[i] && box[i] <= 256, "%s: the box has %u elements along dimension %u", me, box[i],
               i);
        DEMAND(steps[i] && steps[i] <= 8, "%s: step %u along dimension %u", me, steps[i], i);
        if (i + 1 < rank)
            DEMAND(strides[i] % 16 == 0 && strides[i] < (uint64_t)1 << 40, "%s: stride %llu", me,
                   (unsigned long long)strides[i]);
    }
    unsigned row = box[0] * (fast ? 1 : ELEMENT_BYTES[type]);
    DEMAND(row % 16 == 0, "%s: rows of the box have %u bytes, no multiple of 16", me, row);
    DEMAND(!swizzle || row <= SPAN[swizzle], "%s: rows of %u bytes are swizzled in spans of %u", me,
           row, SPAN[swizzle]);
    TELL("map %d: %u dims, %llu,%llu by %llu, box %u,%u, steps %u,%u, swizzle %d", type, rank,
         (unsigned long long)dims[0], (unsigned long long)(rank > 1 ? dims[1] : 0),
         (unsigned long long)(rank > 1 ? strides[0] : 0), box[0], rank > 1 ? box[1] : 0, steps[0],
         rank > 1 ? steps[1] : 0, swizzle);
    memset(map, 7, 128);
    return SUCCESS;
}

// How the bindings find all of these.
Result cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags,
                           int *status) {
    Dl_info here;
    dladdr((void *)cuInit, &here);
    // As a driver does: of functions that have changed, the form of the version that is asked for.
    if (version >= 12000 && !strcmp(name, "cuGetProcAddress")) name = "cuGetProcAddress_v2";
    int unknown = driver_version() < 12040 && !strcmp(name, "cuFuncGetParamInfo");
    unknown |= driver_version() < 12030 && !strcmp(name, "cuGraphConditionalHandleCreate");
    *found = unknown ? NULL : dlsym(dlopen(here.dli_fname, RTLD_NOW), name);
    if (status) *status = !*found;
    return *found ? SUCCESS : NOT_FOUND;
}
Result cuGetProcAddress(const char *name, void **found, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, found, version, flags, NULL);
}
