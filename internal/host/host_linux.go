package host

import (
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/linux/sysctl"
)

// Host is the host that this process runs on. It is safe for concurrent use.
type Host struct {
	values *sysctl.Sysctl

	mu      sync.Mutex // held while settings are applied
	effects []Effect
}

// New returns access to the host.
func New(o Options) *Host {
	return &Host{values: sysctl.New(sysctl.Options{Root: o.Root, NetNS: o.NetNS})}
}

const onlineCPUs = "/sys/devices/system/cpu/online"

// CPUs returns the number of CPUs that are online. If it cannot be read, CPUs returns
// the number of those that this process may run on.
func (h *Host) CPUs() int {
	text, err := h.values.Get(onlineCPUs)
	if err != nil {
		return runtime.NumCPU()
	}
	n, err := countCPUs(text)
	if err != nil {
		return runtime.NumCPU()
	}
	return n
}

// countCPUs reads a list such as "0-3,8" (Documentation/admin-guide/cputopology.rst).
func countCPUs(list string) (int, error) {
	count := 0
	for item := range strings.SplitSeq(list, ",") {
		first, last, ranged := strings.Cut(item, "-")
		if !ranged {
			last = first
		}
		low, err1 := strconv.Atoi(first)
		high, err2 := strconv.Atoi(last)
		if err1 != nil || err2 != nil || high < low {
			return 0, fmt.Errorf("%q is not a list of CPUs", list)
		}
		count += high - low + 1
	}
	return count, nil
}

// Configure applies the settings of the configuration. It returns an error that names
// each setting that it could not write; it writes all others.
func (h *Host) Configure(c *config.Config) error {
	return h.apply(Settings(c, h.CPUs()))
}

// Prepare is Configure for --init-only: it applies only the settings that outlive this process.
func (h *Host) Prepare(c *config.Config) error {
	return h.apply(Lasting(c, h.CPUs()))
}

// Compare returns the settings that outlive this process and do not have the wanted value. The error of an Effect is
// why this process cannot set it, or cannot read it; nil: it can set it. Compare sets nothing.
func (h *Host) Compare(c *config.Config) []Effect {
	var differ []Effect
	for _, s := range Lasting(c, h.CPUs()) {
		e := Effect{Name: s.Name, Wanted: s.Value}
		if e.Is, e.Err = h.values.Get(s.Name); e.Err == nil && s.holds(e.Is) {
			continue
		}
		if e.Err == nil {
			e.Err = h.values.Writable(s.Name)
		}
		differ = append(differ, e)
	}
	return differ
}

func (h *Host) apply(settings []Setting) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.effects = h.Apply(settings)
	return Failed(h.effects)
}

// Effects returns the outcome of the last settings.
func (h *Host) Effects() []Effect {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.effects)
}
