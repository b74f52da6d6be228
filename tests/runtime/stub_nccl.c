// A stand-in for libnccl.so.2: nccl4py's own bindings run on it, so that what
// runtime/distributed/nccl.py hands them is tested without a GPU. It works on the memory and streams
// of the stand-in for libcuda (stub_cuda.c), and bytes go between processes as files of the folder
// STUB_NCCL_FOLDER. Each call is compared with what NCCL's documentation demands, and with what this
// project demands of itself (one send and one receive for each peer of a group, all on one stream);
// what breaks it is told on stderr as VIOLATION, and the call fails. STUB_QUIET: nothing else is told.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef int Result;
enum { SUCCESS, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE = 6, IN_PROGRESS = 7 };
#define TELL(...) (getenv("STUB_QUIET") ? 0 : (fprintf(stderr, __VA_ARGS__), fputc('\n', stderr)))
#define VIOLATION(...) \
    (fprintf(stderr, "VIOLATION "), fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), INVALID_ARGUMENT)
#define DEMAND(holds, ...) do { if (!(holds)) return VIOLATION(__VA_ARGS__); } while (0)
static const int WIDTH[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};  // of ncclDataType_t
enum { TYPES = 12, INT32 = 2, UINT32, INT64, UINT64, FLOAT32 = 7, FLOAT64, PEERS = 64, ALIVE = 0x5eed };

typedef struct { char internal[128]; } UniqueId;
typedef struct { size_t size; unsigned magic, version; int blocking; } Config;
enum { NOTHING, START, SPLIT, RECEIVE, COLLECTIVE, FINALIZE };
typedef struct { int kind, peer, type; uintptr_t memory; size_t bytes; unsigned number; } Pending;
enum { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER };
typedef struct Comm {
    int alive, ranks, rank, state, finalized;
    char name[256];  // of files
    unsigned sent[PEERS], received[PEERS], collectives, splits;
    struct { int kind, what, type, op; uintptr_t target; size_t count; unsigned number; } wait;
    Pending receives[PEERS];
    int receiving, color, key;
    struct Comm *parent;
} Comm;

static const char *folder(void) {
    const char *named = getenv("STUB_NCCL_FOLDER");
    return named ? named : "/tmp";
}
static void write_file(const char *name, const void *data, size_t size) {
    char path[768], whole[768];
    snprintf(path, sizeof path, "%s/.%s.%d", folder(), name, (int)getpid());
    snprintf(whole, sizeof whole, "%s/%s", folder(), name);
    FILE *file = fopen(path, "wb");
    fwrite(data, 1, size, file);
    fclose(file);
    rename(path, whole);
}
static long size_of_file(const char *name) {
    char path[768];
    struct stat about;
    snprintf(path, sizeof path, "%s/%s", folder(), name);
    return stat(path, &about) ? -1 : (long)about.st_size;
}
static void read_file(const char *name, void *data, size_t size) {
    char path[768];
    snprintf(path, sizeof path, "%s/%s", folder(), name);
    FILE *file = fopen(path, "rb");
    if (!file || fread(data, 1, size, file) != size) VIOLATION("a message cannot be read");
    if (file) fclose(file);
}

// What the stand-in for the driver knows.
static void *of_cuda(const char *name) {
    static void *library;
    if (!library) library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    return library ? dlsym(library, name) : NULL;  // its own file, wherever it was loaded
}
static int in_memory(uintptr_t address, size_t size) {
    int (*known)(uint64_t, size_t) = of_cuda("stub_is_memory");
    return known && known(address, size);
}
static int is_stream(void *stream) {
    int (*known)(void *) = of_cuda("stub_is_stream");
    return known && known(stream);
}

static int depth;  // of groups
typedef struct { Comm *comm; int sends, peer, type; uintptr_t memory; size_t bytes; void *stream; } Queued;
static Queued queue[4 * PEERS];
static int queued;

Result ncclGetVersion(int *version) { *version = 22900; return SUCCESS; }
const char *ncclGetErrorString(Result result) { return result == INVALID_ARGUMENT ? "invalid argument" : "stub"; }
const char *ncclGetLastError(Comm *comm) { return "stub: the last error"; }
Result ncclGetUniqueId(UniqueId *made) {
    static int count;
    memset(made, 0, sizeof *made);
    snprintf(made->internal, sizeof made->internal, "nccl-%d-%d", (int)getpid(), count++);
    return SUCCESS;
}

static Comm *new_comm(void) {
    Comm *made = calloc(1, sizeof *made);
    made->alive = ALIVE;
    return made;
}
#define DEMAND_COMM(c) DEMAND((c) && (c)->alive == ALIVE, "%s: no communicator", __func__)
#define DEMAND_READY(c) \
    DEMAND_COMM(c); \
    DEMAND((c)->state == SUCCESS, "%s: the communicator's last call is in progress or failed", __func__)

static int typed_sum(void *total, const void *one, size_t count, int type) {
    for (size_t i = 0; i < count; i++) switch (type) {
        case FLOAT32: ((float *)total)[i] += ((const float *)one)[i]; break;
        case FLOAT64: ((double *)total)[i] += ((const double *)one)[i]; break;
        case INT32: case UINT32: ((uint32_t *)total)[i] += ((const uint32_t *)one)[i]; break;
        case INT64: case UINT64: ((uint64_t *)total)[i] += ((const uint64_t *)one)[i]; break;
        default: return 0;
    }
    return 1;
}

// What the communicator waits for, as far as it has come.
static void progress(Comm *c) {
    char name[512];
    if (c->state != IN_PROGRESS) return;
    if (c->wait.kind == START) {
        for (int rank = 0; rank < c->ranks; rank++) {
            snprintf(name, sizeof name, "%s.start.%d", c->name, rank);
            if (size_of_file(name) < 0) return;
        }
    } else if (c->wait.kind == SPLIT) {
        int colors[PEERS], keys[PEERS], own = 0, members = 0;
        for (int rank = 0; rank < c->parent->ranks; rank++) {
            snprintf(name, sizeof name, "%s.split%u.%d", c->parent->name, c->wait.number, rank);
            if (size_of_file(name) < 0) return;
            int both[2];
            read_file(name, both, sizeof both);
            colors[rank] = both[0];
            keys[rank] = both[1];
        }
        for (int rank = 0; rank < c->parent->ranks; rank++) {
            if (colors[rank] != c->color) continue;
            members++;
            if (keys[rank] < c->key || (keys[rank] == c->key && rank < c->parent->rank)) own++;
        }
        c->ranks = members;
        c->rank = own;
        snprintf(c->name, sizeof c->name, "%.200s-%u-%d", c->parent->name, c->wait.number, c->color);
    } else if (c->wait.kind == RECEIVE) {
        for (int i = 0; i < c->receiving; i++) {
            Pending *one = &c->receives[i];
            if (!one->kind) continue;
            snprintf(name, sizeof name, "%s.%d-%d.%u", c->name, one->peer, c->rank, one->number);
            long size = size_of_file(name);
            if (size < 0) continue;
            if ((size_t)size != one->bytes) {
                VIOLATION("ncclRecv: %zu bytes from %d, which sends %ld", one->bytes, one->peer, size);
                c->state = INVALID_USAGE;
                return;
            }
            read_file(name, (void *)one->memory, one->bytes);
            one->kind = NOTHING;
        }
        for (int i = 0; i < c->receiving; i++) if (c->receives[i].kind) return;
        c->receiving = 0;
    } else if (c->wait.kind == COLLECTIVE) {
        size_t bytes = 0;
        for (int rank = 0; rank < c->ranks; rank++) {
            snprintf(name, sizeof name, "%s.all%u.%d", c->name, c->wait.number, rank);
            long size = size_of_file(name);
            if (size < 0) return;
            if (rank && (size_t)size != bytes) {
                VIOLATION("a collective of %zu and %ld bytes", bytes, size);
                c->state = INVALID_USAGE;
                return;
            }
            bytes = size;
        }
        char *total = calloc(1, bytes), *one = malloc(bytes);
        size_t count = bytes / WIDTH[c->wait.type];
        for (int rank = 0; rank < c->ranks; rank++) {
            snprintf(name, sizeof name, "%s.all%u.%d", c->name, c->wait.number, rank);
            read_file(name, one, bytes);
            if (c->wait.what == ALL_GATHER) memcpy((char *)c->wait.target + rank * bytes, one, bytes);
            else typed_sum(total, one, count, c->wait.type);
        }
        if (c->wait.what == ALL_REDUCE) memcpy((void *)c->wait.target, total, bytes);
        if (c->wait.what == REDUCE_SCATTER)
            memcpy((void *)c->wait.target, total + c->rank * (bytes / c->ranks), bytes / c->ranks);
        free(total);
        free(one);
    }
    c->state = SUCCESS;
}

static Result begun(Comm *c, int kind) {
    c->state = IN_PROGRESS;
    c->wait.kind = kind;
    return IN_PROGRESS;  // a communicator that does not block
}

static Result started(Comm **made, int ranks, const UniqueId *id, int rank, const Config *config) {
    DEMAND(ranks > 0 && ranks <= PEERS && rank >= 0 && rank < ranks, "init: rank %d of %d", rank, ranks);
    DEMAND(!strncmp(id->internal, "nccl-", 5), "init: no unique id");
    DEMAND(config && config->blocking == 0, "init: the communicator blocks");
    Comm *c = *made = new_comm();
    char name[512];
    c->ranks = ranks;
    c->rank = rank;
    snprintf(c->name, sizeof c->name, "%s", id->internal);
    snprintf(name, sizeof name, "%s.start.%d", c->name, rank);
    DEMAND(size_of_file(name) < 0, "init: rank %d twice", rank);
    write_file(name, "", 0);
    TELL("communicator %d of %d", rank, ranks);
    return begun(c, START);
}
Result ncclCommInitRankConfig(Comm **made, int ranks, UniqueId id, int rank, Config *config) {
    return started(made, ranks, &id, rank, config);
}
Result ncclCommInitRankScalable(Comm **made, int ranks, int rank, int ids, UniqueId *id, Config *config) {
    DEMAND(ids == 1, "init: %d unique ids", ids);
    return started(made, ranks, id, rank, config);
}
Result ncclCommSplit(Comm *c, int color, int key, Comm **made, Config *config) {
    DEMAND_READY(c);
    DEMAND(!depth, "ncclCommSplit: in a group");
    DEMAND(color >= 0, "ncclCommSplit: color %d", color);
    DEMAND(config && config->blocking == 0, "ncclCommSplit: the communicator blocks");
    int both[2] = {color, key};
    char name[512];
    Comm *child = *made = new_comm();
    child->parent = c;
    child->color = color;
    child->key = key;
    child->wait.number = c->splits++;
    snprintf(name, sizeof name, "%s.split%u.%d", c->name, child->wait.number, c->rank);
    write_file(name, both, sizeof both);
    TELL("split %d, %d", color, key);
    return begun(child, SPLIT);
}
Result ncclCommGetAsyncError(Comm *c, Result *state) {
    DEMAND_COMM(c);
    progress(c);
    *state = c->state;
    return SUCCESS;
}
Result ncclCommAbort(Comm *c) {
    DEMAND_COMM(c);
    c->alive = 0;
    TELL("abort");
    return SUCCESS;
}
Result ncclCommFinalize(Comm *c) {
    DEMAND_READY(c);
    DEMAND(!c->finalized, "ncclCommFinalize: twice");
    c->finalized = 1;
    return SUCCESS;
}
Result ncclCommDestroy(Comm *c) {
    DEMAND_READY(c);
    DEMAND(c->finalized, "ncclCommDestroy: before ncclCommFinalize");
    c->alive = 0;
    TELL("destroy");
    return SUCCESS;
}

static Result operation(const char *name, Comm *c, uintptr_t memory, size_t bytes, void *stream) {
    DEMAND(c && c->alive == ALIVE, "%s: no communicator", name);
    DEMAND(c->state == SUCCESS && !c->finalized,
           "%s: the communicator's last call is in progress or failed", name);
    DEMAND((uintptr_t)stream > 2 && is_stream(stream), "%s: no stream %p", name, stream);
    DEMAND(bytes, "%s: 0 bytes", name);
    DEMAND(in_memory(memory, bytes), "%s: %zu bytes at %zx are in no allocation", name, bytes, memory);
    return SUCCESS;
}
static Result between(const char *name, int sends, uintptr_t memory, size_t count, int type, int peer,
                      Comm *c, void *stream) {
    DEMAND(type >= 0 && type < TYPES, "%s: type %d", name, type);
    size_t bytes = count * WIDTH[type];
    Result wrong = operation(name, c, memory, bytes, stream);
    if (wrong) return wrong;
    DEMAND(depth, "%s: outside of a group", name);
    DEMAND(depth == 1, "%s: in a group in a group", name);
    DEMAND(peer >= 0 && peer < c->ranks, "%s: peer %d of %d", name, peer, c->ranks);
    for (int i = 0; i < queued; i++) {
        Queued *other = &queue[i];
        DEMAND(other->stream == stream, "%s: two streams in a group", name);
        DEMAND(other->sends != sends || other->peer != peer || other->comm != c,
               "%s: peer %d twice in a group", name, peer);
        int apart = memory + bytes <= other->memory || other->memory + other->bytes <= memory;
        DEMAND(apart || (sends && other->sends), "%s: memory that another call of the group uses", name);
    }
    queue[queued++] = (Queued){c, sends, peer, type, memory, bytes, stream};
    return SUCCESS;
}
Result ncclSend(uintptr_t memory, size_t count, int type, int peer, Comm *c, void *stream) {
    return between("ncclSend", 1, memory, count, type, peer, c, stream);
}
Result ncclRecv(uintptr_t memory, size_t count, int type, int peer, Comm *c, void *stream) {
    return between("ncclRecv", 0, memory, count, type, peer, c, stream);
}
Result ncclGroupStart(void) { depth++; return SUCCESS; }
Result ncclGroupEnd(void) {
    DEMAND(depth > 0, "ncclGroupEnd: no group");
    if (--depth) return SUCCESS;
    Comm *last = NULL;
    int sends = 0, receives = 0;
    for (int i = 0; i < queued; i++) {
        Queued *one = &queue[i];
        Comm *c = last = one->comm;
        if (one->sends) {
            char name[512];
            snprintf(name, sizeof name, "%s.%d-%d.%u", c->name, c->rank, one->peer, c->sent[one->peer]++);
            write_file(name, (void *)one->memory, one->bytes);
            sends++;
        } else {
            c->receives[c->receiving++] = (Pending){RECEIVE, one->peer, one->type, one->memory,
                                                    one->bytes, c->received[one->peer]++};
            receives++;
        }
    }
    TELL("group of %d sends, %d receives", sends, receives);
    queued = 0;
    if (!last) return SUCCESS;
    begun(last, RECEIVE);
    progress(last);
    return last->state;
}

static Result collective(const char *name, int what, uintptr_t given, size_t bytes, uintptr_t made,
                         size_t got, int type, int op, Comm *c, void *stream) {
    DEMAND(type >= 0 && type < TYPES, "%s: type %d", name, type);
    DEMAND(op == 0, "%s: operation %d", name, op);
    bytes *= WIDTH[type];
    got *= WIDTH[type];
    Result wrong = operation(name, c, given, bytes, stream);
    if (!wrong) wrong = operation(name, c, made, got, stream);
    if (wrong) return wrong;
    DEMAND(given + bytes <= made || made + got <= given || given == made, "%s: memory overlaps", name);
    char file[512];
    snprintf(file, sizeof file, "%s.all%u.%d", c->name, c->collectives, c->rank);
    write_file(file, (void *)given, bytes);
    c->wait.what = what;
    c->wait.type = type;
    c->wait.target = made;
    c->wait.number = c->collectives++;
    TELL("%s of %zu bytes", name, bytes);
    begun(c, COLLECTIVE);
    progress(c);
    return c->state;
}
Result ncclAllReduce(uintptr_t given, uintptr_t made, size_t count, int type, int op, Comm *c, void *stream) {
    return collective("ncclAllReduce", ALL_REDUCE, given, count, made, count, type, op, c, stream);
}
Result ncclAllGather(uintptr_t given, uintptr_t made, size_t count, int type, Comm *c, void *stream) {
    DEMAND_COMM(c);
    return collective("ncclAllGather", ALL_GATHER, given, count, made, count * c->ranks, type, 0, c, stream);
}
Result ncclReduceScatter(uintptr_t given, uintptr_t made, size_t count, int type, int op, Comm *c, void *stream) {
    DEMAND_COMM(c);
    return collective("ncclReduceScatter", REDUCE_SCATTER, given, count * c->ranks, made, count, type, op,
                      c, stream);
}
