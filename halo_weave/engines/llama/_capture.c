/* The attention callback in C: reads the softmax of each layer while the graph is computed and combines the chosen
 * (layer, head) pairs to one row per token. It includes no header of llama.cpp: the functions of ggml that it needs
 * are function pointers in the struct, which attention_capture.py mirrors. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *(*name)(const void *tensor);
    int64_t (*elements)(const void *tensor);
    int64_t (*rows)(const void *tensor);
    size_t (*bytes)(const void *tensor);
    void (*get)(const void *tensor, void *target, size_t offset, size_t size);
    const uint8_t *layers; /* (n_layers,): 1 for layers with a chosen head */
    const uint8_t *pairs;  /* (n_layers, n_heads): 1 for chosen pairs */
    const int32_t *slots;  /* (n_layers, n_heads): index of each pair in `raw`, or -1 */
    float *folded;         /* (queries, columns) */
    float *raw;            /* (queries, n_raw, columns), or NULL */
    float *line;           /* (columns,) */
    int64_t columns;       /* allocated length of a row */
    int32_t n_layers;
    int32_t n_heads;
    int32_t n_raw;
    int32_t tokens;    /* in the batch */
    int32_t queries;   /* capture the rows of this many last tokens; 0: no tensor is requested */
    int32_t maximum;   /* combine by maximum; by sum otherwise */
    int32_t n_kv;      /* out: number of cells of a row */
    int32_t folds;     /* out: number of pairs in each row */
    int32_t failed;    /* out: a tensor had an unexpected shape */
} capture_t;

static const char PREFIX[] = "kq_soft_max-";

static int layer_of(const char *name) {
    if (strncmp(name, PREFIX, sizeof PREFIX - 1) != 0) {
        return -1;
    }
    return atoi(name + sizeof PREFIX - 1);
}

static void read_layer(capture_t *c, const void *tensor, int layer) {
    const int64_t elements = c->elements(tensor);
    const int64_t rows = c->rows(tensor);
    const int64_t n_kv = rows > 0 ? elements / rows : 0;
    const int64_t heads = c->tokens > 0 ? rows / c->tokens : 0;
    if (n_kv <= 0 || n_kv > c->columns || heads * c->tokens != rows || heads > c->n_heads ||
        c->bytes(tensor) != (size_t) elements * sizeof(float) || (c->n_kv && c->n_kv != n_kv)) {
        c->failed = 1;
        return;
    }
    c->n_kv = (int32_t) n_kv;
    for (int64_t head = 0; head < heads; head++) {
        const int64_t pair = (int64_t) layer * c->n_heads + head;
        const int32_t slot = c->slots[pair];
        if (!c->pairs[pair]) {
            continue;
        }
        for (int32_t query = 0; query < c->queries; query++) {
            const int64_t row = head * c->tokens + (c->tokens - c->queries + query);
            float *line = c->line;
            if (c->raw && slot >= 0) {
                line = c->raw + ((int64_t) query * c->n_raw + slot) * c->columns;
            }
            c->get(tensor, line, (size_t) (row * n_kv) * sizeof(float), (size_t) n_kv * sizeof(float));
            float *folded = c->folded + query * c->columns;
            if (c->maximum) {
                for (int64_t i = 0; i < n_kv; i++) {
                    folded[i] = line[i] > folded[i] ? line[i] : folded[i];
                }
            } else {
                for (int64_t i = 0; i < n_kv; i++) {
                    folded[i] += line[i];
                }
            }
        }
        c->folds++;
    }
}

static bool callback(void *tensor, bool ask, void *user) {
    capture_t *c = user;
    if (c->queries == 0) {
        return !ask;
    }
    const int layer = layer_of(c->name(tensor));
    const bool wanted = layer >= 0 && layer < c->n_layers && c->layers[layer];
    if (!ask && wanted) {
        read_layer(c, tensor, layer);
    }
    return ask ? wanted : true;
}

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_capture", NULL, -1, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__capture(void) {
    PyObject *self = PyModule_Create(&module);
    if (!self) {
        return NULL;
    }
    PyObject *address = PyLong_FromVoidPtr((void *) callback);
    if (!address || PyModule_AddObjectRef(self, "address", address) < 0 ||
        PyModule_AddIntConstant(self, "size", sizeof(capture_t)) < 0) {
        Py_XDECREF(address);
        Py_DECREF(self);
        return NULL;
    }
    Py_DECREF(address);
    return self;
}
