package host

import (
	"errors"
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

// CPUs returns the number of CPUs that are online, or of those of this process if it cannot be read.
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

// Configure applies the settings of the configuration. Its error names each setting that it could not write.
func (h *Host) Configure(c *config.Config) error {
	return h.Apply(Settings(c, h.CPUs()))
}

// Prepare is Configure for --init-only: it applies only the settings that outlive this process.
func (h *Host) Prepare(c *config.Config) error {
	return h.Apply(Lasting(c, h.CPUs()))
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

// Effects returns the outcome of the last settings.
func (h *Host) Effects() []Effect {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.effects)
}

// Apply writes settings, each only if the host has another value. A failure does not keep others from being written;
// the error names every setting that failed, on one line.
func (h *Host) Apply(settings []Setting) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.effects = nil
	var failures []string
	for _, s := range settings {
		e := h.make(s)
		h.effects = append(h.effects, e)
		if e.Err != nil {
			failures = append(failures, e.Err.Error())
		}
	}
	if len(failures) == 0 {
		return nil
	}
	return errors.New("settings of the host: " + strings.Join(failures, "; "))
}

func (h *Host) make(s Setting) Effect {
	e := Effect{Name: s.Name, Wanted: s.Value}
	if e.Was, e.Err = h.values.Get(s.Name); e.Err != nil {
		return e
	}
	e.Is = e.Was
	if s.holds(e.Was) {
		return e
	}
	if err := h.values.Set(s.Name, s.Value); err != nil {
		e.Err = s.explain(err)
		return e
	}
	e.Is, e.Err = h.values.Get(s.Name)
	if e.Err == nil && !s.holds(e.Is) {
		e.Err = fmt.Errorf("set %s=%s: the kernel made it %s", s.Name, s.Value, e.Is)
	}
	return e
}

// holds reports whether a value satisfies the wanted one.
func (s Setting) holds(value string) bool {
	if !s.AtLeast {
		return value == s.Value
	}
	have, err1 := strconv.Atoi(value)
	want, err2 := strconv.Atoi(s.Value)
	return err1 == nil && err2 == nil && have >= want
}

// explain adds a reason to errors of settings that only the host itself has.
func (s Setting) explain(err error) error {
	if !s.HostOnly || !sysctl.Forbidden(err) {
		return err
	}
	return fmt.Errorf("%w; in a network namespace that is not the host's it cannot be set at all", err)
}
