/* The gate's tables: the places in the program that make calls, and the hashes of calls' cache keys ("kinds").
   Arguments are read here, both for their sizes and for the keys. */

#define FRAMES (PY_VERSION_HEX < 0x030E0000) /* the versions of Python whose frames were tested */
#if FRAMES
#define Py_BUILD_CORE
#include <internal/pycore_frame.h>
#endif

/* The calling code object, borrowed, and the instruction in it, above code with global variables that are `passed`;
   NULL if the caller is not Python code.

   PyEval_GetFrame() creates a frame object, which takes longer than all other steps together. */
static PyObject *
caller(int *instruction, PyObject *passed)
{
#if FRAMES
    PyThreadState *thread = PyThreadState_Get();
#if PY_VERSION_HEX < 0x030D0000
    struct _PyInterpreterFrame *frame = thread->cframe->current_frame;
#else
    struct _PyInterpreterFrame *frame = thread->current_frame;
#endif
#if PY_VERSION_HEX < 0x030C0000
    while (frame != NULL && is_in(passed, frame->f_globals)) {
#else
    while (frame != NULL && (frame->owner == FRAME_OWNED_BY_CSTACK || is_in(passed, frame->f_globals))) {
#endif
        frame = frame->previous;
    }
#if PY_VERSION_HEX < 0x030D0000
    PyObject *code = frame == NULL ? NULL : (PyObject *)frame->f_code;
#else
    PyObject *code = frame == NULL ? NULL : frame->f_executable;
#endif
    *instruction = code == NULL ? -1 : _PyInterpreterFrame_LASTI(frame) * (int)sizeof(_Py_CODEUNIT);
    return code;
#else
    PyFrameObject *frame = (PyFrameObject *)Py_XNewRef(PyEval_GetFrame());
    while (frame != NULL) {
        PyObject *globals = PyFrame_GetGlobals(frame);
        Py_DECREF(globals); /* the frame holds another reference */
        if (!is_in(passed, globals)) {
            break;
        }
        Py_SETREF(frame, PyFrame_GetBack(frame));
    }
    if (frame == NULL) {
        return NULL;
    }
    PyObject *code = (PyObject *)PyFrame_GetCode(frame);
    *instruction = PyFrame_GetLasti(frame);
    Py_DECREF(code); /* the running frame holds others */
    Py_DECREF(frame);
    return code;
#endif
}

enum { PLACES_LOG2 = 8 }; /* log2 of the number of places */
enum { NEXT = 4 };        /* a place is in one of this many neighbouring entries */
enum { PLACES = (1 << PLACES_LOG2) + NEXT - 1 };
enum { OPTION = 32 };     /* elements of the largest array or list that may be an option: `OPERANDS` of cache_key.py */
enum { DEPTH = 8 };       /* lists and tuples within each other that an argument may be */
enum { KINDS_LOG2 = 8 };  /* log2 of the number of entries for cache keys; a later key may replace an earlier one */

typedef struct {
    PyObject *code, *count, *tag; /* only calls whose cache key has this tag pass */
    PyObject *sample;             /* receives the time of the call after the `left` ones; None: that call is decided */
    int instruction;
    long left, each;
    unsigned long turn;
} Place;

/* The first of the entries that a place may be in. */
static Place *
first_of(Place *places, PyObject *code, int instruction)
{
    uint64_t key = (uint64_t)(uintptr_t)code + (uint64_t)instruction;
    return places + (key * UINT64_C(0x9E3779B97F4A7C15) >> (64 - PLACES_LOG2)); /* 2^64 over the golden ratio */
}

/* The entry of a place; NULL if it has none. */
static Place *
entry_of(Place *places, PyObject *code, int instruction)
{
    Place *first = first_of(places, code, instruction);
    for (Place *place = first; place < first + NEXT; place++) {
        if (place->code == code && place->instruction == instruction) {
            return place;
        }
    }
    return NULL;
}

/* Give an entry new contents, and only then release the old ones, because this may run any code. */
static void
replace(Place *place, Place now)
{
    Place before = *place;
    *place = now;
    Py_XDECREF(before.code);
    Py_XDECREF(before.count);
    Py_XDECREF(before.tag);
    Py_XDECREF(before.sample);
}

/* The entry for a new place: one through which no more calls may pass, otherwise the first. */
static Place *
entry_for(Place *places, unsigned long turn, PyObject *code, int instruction)
{
    Place *first = first_of(places, code, instruction);
    for (Place *place = first; place < first + NEXT; place++) {
        if ((place->left <= 0 && (place->sample == NULL || place->sample == Py_None)) || place->turn != turn) {
            return place;
        }
    }
    return first;
}

typedef struct {
    double elements, product;
    int blas; /* whether all arrays have dtypes that BLAS multiplies */
} Sizes;

/* Add the sizes of an argument: an array, a number, an option, or a list of those; 0 for other ones and above `most`. */
static int
add_sizes(Sizes *sizes, PyObject *a, double most, int depth)
{
    if (PyArray_CheckExact(a)) {
        double size = (double)PyArray_SIZE((PyArrayObject *)a);
        int number = PyArray_TYPE((PyArrayObject *)a);
        sizes->elements += size;
        sizes->product *= size > 1 ? size : 1;
        sizes->blas &= number == NPY_DOUBLE || number == NPY_FLOAT || number == NPY_CDOUBLE || number == NPY_CFLOAT;
        return sizes->elements <= most;
    }
    if (PyTuple_CheckExact(a) || PyList_CheckExact(a)) {
        Py_ssize_t n = PySequence_Fast_GET_SIZE(a);
        sizes->elements += (double)n;
        int fits = depth > 0 && sizes->elements <= most;
        for (Py_ssize_t i = 0; fits && i < n; i++) {
            fits = add_sizes(sizes, PySequence_Fast_ITEMS(a)[i], most, depth - 1);
        }
        return fits;
    }
    if (a == Py_None || PyLong_Check(a) || PyFloat_Check(a) || PyUnicode_Check(a) || PyComplex_Check(a) ||
        PyArray_IsScalar(a, Number)) {
        return 1;
    }
    double stored = stored_in(a);
    sizes->elements += stored;
    sizes->product *= stored > 1 ? stored : 1;
    sizes->blas = 0;
    return stored >= 0 && sizes->elements <= most;
}

typedef struct {
    uint64_t hash;
    PyObject *function; /* returns the original function's result */
    PyObject *tag;      /* calls with the same tag are counted together */
} Kind;

static uint64_t
mixed(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * UINT64_C(0x9E3779B97F4A7C15);
    return hash ^ hash >> 29;
}

/* `hash` changed if an array is given twice in a row: a product with itself may be computed in another way. */
static uint64_t
with_identity(uint64_t hash, PyObject *before, PyObject *a)
{
    return hash != 0 && before == a && PyArray_CheckExact(a) ? mixed(hash, 1) | 1 : hash;
}

/* `hash` combined with the properties of an argument that a decision reads; 0 if a decision may read other ones.

   An array passed by keyword, also within a tuple, may be an output or not, call by call: `keyword` says so.
   If two cache keys have the same hash, the second call also runs NumPy's function, which is correct. */
static uint64_t
with_argument(uint64_t hash, PyObject *a, int keyword, int depth)
{
    if (PyArray_Check(a)) {
        PyArrayObject *array = (PyArrayObject *)a;
        int number = PyArray_TYPE(array);
        if (keyword || !PyArray_CheckExact(a) || number >= NPY_OBJECT || PyArray_ISBYTESWAPPED(array)) {
            return 0;
        }
        if (PyArray_SIZE(array) <= OPTION && (PyArray_NDIM(array) == 0 || (number != NPY_BOOL && number < NPY_FLOAT))) {
            if (!PyArray_IS_C_CONTIGUOUS(array)) {
                return 0;
            }
            npy_intp left = PyArray_NBYTES(array); /* its values count: they may be the axes of tensordot */
            for (const char *bytes = PyArray_BYTES(array); left > 0; bytes += sizeof(uint64_t), left -= sizeof(uint64_t)) {
                uint64_t word = 0;
                memcpy(&word, bytes, left < (npy_intp)sizeof word ? (size_t)left : sizeof word);
                hash = mixed(hash, word);
            }
        }
        hash = mixed(hash, (uint64_t)number + 64 * (uint64_t)PyArray_NDIM(array));
        for (int i = 0; i < PyArray_NDIM(array); i++) {
            hash = mixed(hash, (uint64_t)PyArray_DIM(array, i));
        }
        return hash | 1;
    }
    if (PyUnicode_CheckExact(a) || PyLong_CheckExact(a) || PyFloat_CheckExact(a)) {
        Py_hash_t value = PyObject_Hash(a);
        return mixed(mixed(hash, (uint64_t)(uintptr_t)Py_TYPE(a)), (uint64_t)value) | 1;
    }
    if (PyTuple_CheckExact(a) || PyList_CheckExact(a)) {
        Py_ssize_t n = PySequence_Fast_GET_SIZE(a);
        PyObject **items = PySequence_Fast_ITEMS(a);
        hash = n > OPTION || depth == 0 ? 0 : mixed(mixed(hash, (uint64_t)(uintptr_t)Py_TYPE(a)), (uint64_t)n) | 1;
        for (Py_ssize_t i = 0; hash != 0 && i < n; i++) {
            hash = with_identity(with_argument(hash, items[i], keyword, depth - 1), i > 0 ? items[i - 1] : NULL, items[i]);
        }
        return hash;
    }
    return a == Py_None || PyBool_Check(a) ? mixed(hash, (uint64_t)(uintptr_t)a) | 1 : 0;
}

/* The hash of a cache key; 0 if there is none. */
static uint64_t
hash_of(PyObject *const *args, Py_ssize_t positional, PyObject *kwnames)
{
    uint64_t hash = (uint64_t)positional + 1;
    for (Py_ssize_t i = 0; hash != 0 && i < positional; i++) {
        hash = with_identity(with_argument(hash, args[i], 0, DEPTH), i > 0 ? args[i - 1] : NULL, args[i]);
    }
    for (Py_ssize_t i = 0; hash != 0 && kwnames != NULL && i < PyTuple_GET_SIZE(kwnames); i++) {
        hash = with_argument(hash, PyTuple_GET_ITEM(kwnames, i), 1, 0);
        hash = hash == 0 ? 0 : with_argument(hash, args[positional + i], 1, DEPTH);
    }
    return hash;
}

/* The hash of a cache key from a tuple and a dictionary of arguments. */
static uint64_t
hash_of_call(PyObject *args, PyObject *kwargs)
{
    uint64_t hash = hash_of(PySequence_Fast_ITEMS(args), PyTuple_GET_SIZE(args), NULL);
    PyObject *name, *value;
    for (Py_ssize_t at = 0; hash != 0 && PyDict_Next(kwargs, &at, &name, &value);) {
        hash = with_argument(hash, name, 1, 0);
        hash = hash == 0 ? 0 : with_argument(hash, value, 1, DEPTH);
    }
    return hash;
}

/* The entry with this hash; NULL if there is none. */
static Kind *
kind_of(Kind *kinds, uint64_t hash)
{
    Kind *kind = kinds == NULL || hash == 0 ? NULL : kinds + (hash >> (64 - KINDS_LOG2));
    return kind != NULL && kind->hash == hash ? kind : NULL;
}

/* Let no entry be found. Its function stays until another one replaces it, because to release it may run any code. */
static void
forget(Kind *kinds)
{
    for (int i = 0; kinds != NULL && i < 1 << KINDS_LOG2; i++) {
        kinds[i].hash = 0;
    }
}

/* Add an entry to a table, which is allocated at its first entry; -1 with an exception. */
static int
remember(Kind **kinds, uint64_t hash, PyObject *function, PyObject *tag)
{
    if (*kinds == NULL && (*kinds = PyMem_Calloc((size_t)1 << KINDS_LOG2, sizeof(Kind))) == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    if (hash != 0) {
        Kind *kind = *kinds + (hash >> (64 - KINDS_LOG2)), before = *kind;
        *kind = (Kind){hash, Py_NewRef(function), Py_NewRef(tag)};
        Py_XDECREF(before.function);
        Py_XDECREF(before.tag);
    }
    return 0;
}
