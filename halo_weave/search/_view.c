/* Products of a query with all rows of the principal components: numpy has no fast product for int8. Without this module,
 * vector_index.py computes the same, more slowly. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#include <stdint.h>

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define FITTED __attribute__((target_clones("avx2", "default"))) /* chosen when the module is loaded */
#else
#define FITTED
#endif

enum { WIDTH = 64 };

FITTED static void multiply(const int8_t *restrict codes, const int16_t *restrict weights, int32_t *restrict out,
                            Py_ssize_t rows) {
    for (Py_ssize_t i = 0; i < rows; i++) {
        const int8_t *row = codes + i * WIDTH;
        int32_t sum = 0;
        for (int j = 0; j < WIDTH; j++) {
            sum += (int16_t) row[j] * weights[j];
        }
        out[i] = sum;
    }
}

static PyObject *products(PyObject *self, PyObject *args) {
    Py_buffer codes, weights, out;
    if (!PyArg_ParseTuple(args, "y*y*w*", &codes, &weights, &out)) {
        return NULL;
    }
    const Py_ssize_t rows = out.len / (Py_ssize_t) sizeof(int32_t);
    const int fits = weights.len == WIDTH * (Py_ssize_t) sizeof(int16_t) && codes.len >= rows * WIDTH;
    if (fits) {
        Py_BEGIN_ALLOW_THREADS;
        multiply(codes.buf, weights.buf, out.buf, rows);
        Py_END_ALLOW_THREADS;
    } else {
        PyErr_SetString(PyExc_ValueError, "the sizes do not match");
    }
    PyBuffer_Release(&codes);
    PyBuffer_Release(&weights);
    PyBuffer_Release(&out);
    return fits ? Py_NewRef(Py_None) : NULL;
}

static PyMethodDef methods[] = {
    {"products", products, METH_VARARGS, "products(codes, weights, out): each row of int8 times int16 becomes an int32"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_view", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__view(void) {
    PyObject *self = PyModule_Create(&module);
    if (self && PyModule_AddIntConstant(self, "width", WIDTH) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return self;
}
