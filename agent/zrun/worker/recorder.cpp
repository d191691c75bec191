// Records collectives in the deck: one boxed kernel in front of every c10d operator.
//
// It sits at the BackendSelect key, below autograd and above every backend, so DDP's reducer, FSDP2, functional
// collectives (their tensors are real by then) and point-to-point calls come by. It notes the arrival, hands on and
// keeps the Work; a rank has left when the Work is completed. Layout of the deck: zrun/core/deck.py, whose numbers are
// handed in. It knows nothing about Python, never takes the GIL, and costs well under a microsecond.

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/library.h>

namespace {

using WorkRef = c10::intrusive_ptr<c10d::Work>;

// Offsets in bytes, in the order of _LAYOUT in recorder_built.py.
struct Layout {
  uint64_t size, step, wait, sequence, done, entered_at, left_at, bytes, group, group_sequence, op, ring, slots, slot_size;
};

struct Inside {
  uint64_t sequence;
  uint64_t kind;  // operator and group
  double entered_at;
  bool returned = false;
  bool blind = false;  // its Work never calls itself completed: over when the rank does the next thing
  WorkRef work;
};

class Recorder {
 public:
  Recorder(uint8_t* deck, const Layout& layout) : deck_(deck), at_(layout) {}

  // `paired`: send or recv, which do not count on the group.
  // `blocking`: its caller can do nothing else until it is over.
  uint64_t enter(uint8_t op, bool paired, bool blocking, uint32_t group, uint64_t bytes) {
    std::lock_guard<std::mutex> held(lock_);
    leave_over(true);
    const uint64_t sequence = ++sequence_;
    uint64_t& of_group = group_sequences_[group];
    if (!paired) ++of_group;
    const double time = now();
    uint8_t* slot = slot_of(sequence);
    put<uint64_t>(slot, sequence);
    put<uint64_t>(slot + 8, bytes);
    put<double>(slot + 16, time);
    put<double>(slot + 24, 0.0);
    put<uint64_t>(slot + 32, of_group);
    put<uint32_t>(slot + 40, group);
    put<uint8_t>(slot + 44, op);
    put<uint8_t>(slot + 45, blocking ? 1 : 0);
    put<uint64_t>(slot + 48, get(at_.step));
    put<uint64_t>(deck_ + at_.bytes, bytes);
    put<uint32_t>(deck_ + at_.group, group);
    put<uint64_t>(deck_ + at_.group_sequence, of_group);
    put<uint8_t>(deck_ + at_.op, op);
    put<double>(deck_ + at_.entered_at, time);
    put<uint64_t>(deck_ + at_.sequence, sequence);
    Inside entry;
    entry.sequence = sequence;
    entry.entered_at = time;
    entry.kind = (static_cast<uint64_t>(op) << 32) | group;
    inside_.push_back(std::move(entry));
    return sequence;
  }

  // The kernel below has returned; `work` is empty if it gave none or threw.
  void handed_on(uint64_t sequence, WorkRef work) {
    std::lock_guard<std::mutex> held(lock_);
    for (auto entry = inside_.rbegin(); entry != inside_.rend(); ++entry) {
      if (entry->sequence != sequence) continue;
      if (work) entry->blind = is_blind(entry->kind, *work);
      entry->work = std::move(work);
      entry->returned = true;
      if (!entry->work) leave_over(false);  // it did not return before it was over
      return;
    }
  }

  // `drop`: also let go of the Works that are over. That may free tensors of Python's, so only a thread of Python's
  // or one inside an operator may do it.
  void sweep(bool moved_on, bool drop) {
    std::vector<WorkRef> spent;  // declared first: what is in it is freed after the lock is
    std::unique_lock<std::mutex> held(lock_, std::try_to_lock);
    if (!held.owns_lock()) return;
    leave_over(moved_on);
    if (drop) spent.swap(spent_);
    held.unlock();
  }

  void let_go() {
    std::vector<WorkRef> spent;
    std::lock_guard<std::mutex> held(lock_);
    spent.swap(spent_);
  }

 private:
  static double now() {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }

  template <typename T>
  static void put(uint8_t* to, T value) {
    __atomic_store(reinterpret_cast<T*>(to), &value, __ATOMIC_RELEASE);
  }

  uint64_t get(uint64_t offset) const {
    return __atomic_load_n(reinterpret_cast<uint64_t*>(deck_ + offset), __ATOMIC_ACQUIRE);
  }

  uint8_t* slot_of(uint64_t sequence) { return deck_ + at_.ring + (sequence % at_.slots) * at_.slot_size; }

  // In order: the deck's count of collectives left stops at the first one that is not over.
  void leave_over(bool moved_on) {
    while (!inside_.empty()) {
      Inside& first = inside_.front();
      if (!first.returned) return;
      if (first.work && !(first.blind && moved_on) && !first.work->isCompleted()) return;
      const double time = now();
      if (!first.blind) {  // overlapping ones are counted once
        waited_ += std::max(0.0, time - std::max(first.entered_at, counted_to_));
        put<double>(deck_ + at_.wait, waited_);
      }
      counted_to_ = time;
      put<double>(deck_ + at_.left_at, time);
      put<double>(slot_of(first.sequence) + 24, time);
      put<uint64_t>(deck_ + at_.done, first.sequence);
      if (first.work) spent_.push_back(std::move(first.work));
      inside_.pop_front();
    }
  }

  // gloo's Works of reduce-scatter never call themselves completed (torch 2.13); they have no future either.
  bool is_blind(uint64_t kind, c10d::Work& work) {
    const auto known = blind_.find(kind);
    if (known != blind_.end()) return known->second;
    bool blind = false;
    try {
      work.getFuture();
    } catch (const std::exception&) {
      blind = true;
    }
    blind_.emplace(kind, blind);
    return blind;
  }

  uint8_t* const deck_;
  const Layout at_;
  std::mutex lock_;
  uint64_t sequence_ = 0;
  double waited_ = 0.0;
  double counted_to_ = 0.0;
  std::deque<Inside> inside_;
  std::vector<WorkRef> spent_;
  std::unordered_map<uint64_t, bool> blind_;
  std::unordered_map<uint32_t, uint64_t> group_sequences_;
};

// Never deleted: kernels may still run while the process ends. Null before the start and in a forked child.
std::atomic<Recorder*> recorder{nullptr};

// Groups of this description are used by saves, on a thread of their own: no news of training. Set once, before a kernel
// is in place.
std::string background;

// zlib's crc32, by which the agent and the Python recorder name a group.
uint32_t crc32_of(const std::string& text) {
  uint32_t value = 0xFFFFFFFFu;
  for (const unsigned char byte : text) {
    value ^= byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ (0xEDB88320u & (0u - (value & 1u)));
  }
  return ~value;
}

uint64_t bytes_in(const c10::IValue& value) {
  if (value.isTensor()) return value.toTensor().defined() ? value.toTensor().nbytes() : 0;
  uint64_t sum = 0;
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) sum += tensor.defined() ? tensor.nbytes() : 0;
  } else if (value.isList()) {
    for (const c10::IValue& inner : value.toListRef()) sum += bytes_in(inner);
  }
  return sum;
}

// An accelerator's collective returns to its caller at once, whatever was asked for.
bool on_cpu(const c10::IValue& value) {
  if (value.isTensor()) return value.toTensor().defined() && value.toTensor().is_cpu();
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector())
      if (!tensor.defined() || !tensor.is_cpu()) return false;
    return true;
  }
  if (!value.isList()) return false;
  for (const c10::IValue& inner : value.toListRef())
    if (!on_cpu(inner)) return false;
  return true;
}

WorkRef work_in(const c10::IValue& value) {
  return value.isCustomClass() ? value.toCustomClass<c10d::Work>() : WorkRef();
}

class Kernel : public c10::OperatorKernel {
 public:
  // `async_at`: which argument says that the caller goes on meanwhile; past the last one if none does.
  Kernel(uint8_t code, size_t group_at, size_t async_at)
      : op_(code & 0x7F), paired_(code & 0x80), group_at_(group_at), async_at_(async_at) {}

  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const auto below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::BackendSelect);
    Recorder* const mine = recorder.load(std::memory_order_acquire);
    const size_t count = handle.schema().arguments().size();
    const auto group = torch::jit::peek(*stack, group_at_, count).toCustomClass<c10d::ProcessGroup>();
    if (mine == nullptr || group->getGroupDesc() == background) {
      handle.redispatchBoxed(below, stack);
      return;
    }
    const c10::IValue& tensors = torch::jit::peek(*stack, 0, count);
    const bool blocking =
        async_at_ < count && !torch::jit::peek(*stack, async_at_, count).toBool() && on_cpu(tensors);
    const uint64_t sequence =
        mine->enter(op_, paired_, blocking, crc32_of(group->getGroupName()), bytes_in(tensors));
    mine->let_go();
    try {
      handle.redispatchBoxed(below, stack);
    } catch (...) {
      mine->handed_on(sequence, WorkRef());
      throw;
    }
    mine->handed_on(sequence, stack->empty() ? WorkRef() : work_in(stack->back()));
  }

 private:
  const uint8_t op_;
  const bool paired_;
  const size_t group_at_;
  const size_t async_at_;
};

void in_child() { recorder.store(nullptr, std::memory_order_release); }

void watch() {  // a stuck GIL must not make a rank look as if it were still inside
  for (;;) {
    usleep(20'000);
    Recorder* const mine = recorder.load(std::memory_order_acquire);
    if (mine != nullptr) mine->sweep(false, false);
  }
}

}  // namespace

extern "C" {

// Maps the deck and puts a kernel in front of each named operator that this torch has. Returns how many, -1 if the deck
// cannot be mapped. Groups described as `ignored` are not recorded.
int zrun_attach(const char* path, const uint64_t* layout, const char* const* names, const uint8_t* codes, int count,
                const char* ignored) {
  const Layout at = *reinterpret_cast<const Layout*>(layout);
  const int file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return -1;
  void* deck = mmap(nullptr, at.size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (deck == MAP_FAILED) return -1;
  background = ignored;
  auto* library = new torch::Library(torch::Library::IMPL, "c10d", c10::DispatchKey::BackendSelect, __FILE__, __LINE__);
  int taken = 0;
  for (int index = 0; index < count; ++index) {
    const auto handle = c10::Dispatcher::singleton().findSchema({std::string("c10d::") + names[index], ""});
    if (!handle) continue;
    const auto& arguments = handle->schema().arguments();
    size_t group_at = 0;
    while (group_at < arguments.size() && arguments[group_at].type()->repr_str().find("ProcessGroup") == std::string::npos)
      ++group_at;
    if (group_at == arguments.size()) continue;
    size_t async_at = 0;
    while (async_at < arguments.size() && arguments[async_at].name() != "async_op" && arguments[async_at].name() != "asyncOp")
      ++async_at;
    library->impl(names[index], torch::CppFunction::makeFromBoxedFunctor(
                                    std::make_unique<Kernel>(codes[index], group_at, async_at)));
    ++taken;
  }
  pthread_atfork(nullptr, nullptr, in_child);
  recorder.store(new Recorder(static_cast<uint8_t*>(deck), at), std::memory_order_release);
  std::thread(watch).detach();
  return taken;
}

void zrun_sweep(int moved_on) {
  Recorder* const mine = recorder.load(std::memory_order_acquire);
  if (mine != nullptr) mine->sweep(moved_on != 0, true);
}
}
