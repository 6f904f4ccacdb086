package machine

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// window is how long a calibration takes: several periods of a CPU quota, which has 100 ms.
	window = 400 * time.Millisecond

	// batch is how long a worker does one kind of work on the reference machine before it does the next.
	batch = 4 * time.Millisecond

	// workers do the same at the same time, on both processors of the reference machine.
	workers = 2
)

type kind struct {
	name      string
	reference time.Duration // of a thousand operations on the reference machine, beside the other worker
	do        func() error  // one operation; the calling thread ends after the calibration
}

// operations is how many operations the reference machine does within d.
func (k kind) operations(d time.Duration) int { return max(1, int(1000*d/k.reference)) }

// everywhere are the kinds of work that every system has.
func everywhere() []kind {
	return []kind{
		{"system call", callReference, func() error { _ = os.Getppid(); return nil }},
		{"computing", computeReference, compute},
	}
}

// compute keeps a processor busy for about a microsecond. The race detector does not slow it down.
func compute() error {
	x := uint64(1)
	for range 1000 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
	}
	if x == 0 {
		return errors.New("a xorshift is never 0")
	}
	return nil
}

// Figures are the measured times of a calibration.
type Figures []Figure

// Figure is the time of one kind of work.
type Figure struct {
	Name  string
	Time  time.Duration // of a thousand operations
	Ratio float64       // to the reference machine
}

// Measure calibrates. It leaves out kinds of work that fail, such as network namespaces without the privilege.
func Measure() Figures {
	all := kinds()
	sums := make([]sum, len(all))
	var working sync.WaitGroup
	var mu sync.Mutex
	end := time.Now().Add(window)
	for range workers {
		working.Go(func() {
			runtime.LockOSThread() // never unlocked: the thread, which may be in another namespace, ends here
			mine := work(all, end)
			mu.Lock()
			defer mu.Unlock()
			for i := range sums {
				sums[i].add(mine[i])
			}
		})
	}
	working.Wait()
	var f Figures
	for i, k := range all {
		if s := sums[i]; s.err == nil {
			took := s.took * 1000 / time.Duration(s.done)
			f = append(f, Figure{k.name, took, float64(took) / float64(k.reference)})
		}
	}
	return f
}

// sum is the work of one kind so far.
type sum struct {
	done int
	took time.Duration
	err  error
}

func (s *sum) add(o sum) {
	s.done += o.done
	s.took += o.took
	if s.err == nil {
		s.err = o.err
	}
}

// work does each kind for a batch in turn, until end. It also ends after twice the work of the reference machine, for
// clocks that stand still while a processor is busy.
func work(kinds []kind, end time.Time) []sum {
	sums := make([]sum, len(kinds))
	rounds := int(2 * window / (batch * time.Duration(len(kinds))))
	for range rounds {
		for i, k := range kinds {
			sums[i].add(k.run())
		}
		if !time.Now().Before(end) {
			break
		}
	}
	return sums
}

// run does a batch.
func (k kind) run() sum {
	began, n := time.Now(), k.operations(batch)
	for range n {
		if err := k.do(); err != nil {
			return sum{err: fmt.Errorf("%s: %w", k.name, err)}
		}
	}
	return sum{done: n, took: time.Since(began)}
}

// Slowdown returns the median of the ratios, from 1 to MaxSlowdown, with one decimal. One kind of work alone does not
// decide: the kernel may create no namespace for a while.
func (f Figures) Slowdown() float64 {
	ratios := make([]float64, 0, len(f))
	for _, one := range f {
		ratios = append(ratios, one.Ratio)
	}
	slices.Sort(ratios)
	if len(ratios) == 0 {
		return 1
	}
	median := (ratios[(len(ratios)-1)/2] + ratios[len(ratios)/2]) / 2
	return min(max(1, math.Round(10*median)/10), MaxSlowdown)
}

// Environ returns the slowdown as a variable of the environment: TEST_SLOWDOWN=1.2.
func (f Figures) Environ() string { return fmt.Sprintf("%s=%.1f", Variable, f.Slowdown()) }

// String returns the result of Environ, and the ratios, on one line.
func (f Figures) String() string {
	ratios := make([]string, 0, len(f))
	for _, one := range f {
		ratios = append(ratios, fmt.Sprintf("%s %.1f", one.Name, one.Ratio))
	}
	return fmt.Sprintf("%s (%s)", f.Environ(), strings.Join(ratios, ", "))
}

// Fastest returns the shorter times of two calibrations.
func Fastest(a, b Figures) Figures {
	if len(a) != len(b) {
		return b
	}
	fastest := make(Figures, len(a))
	for i := range a {
		fastest[i] = a[i]
		if b[i].Time < a[i].Time {
			fastest[i] = b[i]
		}
	}
	return fastest
}
