// Package host applies settings of the configuration to the host: the size and the
// timeouts of connection tracking, and the OOM score of this process. Settings
// decides, Apply writes.
//
// A setting is written only if it differs. So a process without the privilege works
// after another one with it, such as --init-only, wrote the settings.
package host

import (
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/kernel/sysctl"
)

// Options for New.
type Options struct {
	Root  string // folder that stands in for /; "": /
	NetNS int    // file descriptor of the network namespace; 0: the current one
}

// store reads and writes values that the kernel shows in files.
type store interface {
	Get(name string) (string, error)
	Set(name, value string) error
}

// Host is the host this process runs on. Its methods may be called at any time.
type Host struct {
	parameters store // by name
	files      store // by path

	mu      sync.Mutex // held while settings are applied
	effects []Effect
}

// New returns access to the host.
func New(o Options) *Host {
	root := strings.TrimSuffix(o.Root, "/")
	return &Host{
		parameters: sysctl.New(sysctl.Options{Root: root + "/proc/sys", NetNS: o.NetNS}),
		files:      sysctl.NewFiles(sysctl.Options{Root: root, NetNS: o.NetNS}),
	}
}

// Facts are the properties of a host that its settings depend on.
type Facts struct {
	CPUs int // that are online, whether this process may run on them or not
}

const onlineCPUs = "/sys/devices/system/cpu/online"

// Facts reads the facts of the host. If it cannot read the number of CPUs, it counts
// those that this process may run on.
func (h *Host) Facts() Facts {
	text, err := h.files.Get(onlineCPUs)
	if err != nil {
		return Facts{CPUs: runtime.NumCPU()}
	}
	n, err := countCPUs(text)
	if err != nil {
		return Facts{CPUs: runtime.NumCPU()}
	}
	return Facts{CPUs: n}
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

// Bring applies the settings of the configuration. It returns an error that names
// each setting that it could not write; it writes all others.
func (h *Host) Bring(c *config.Config) error {
	return h.apply(Settings(c, h.Facts()))
}

// Prepare is Bring for --init-only: it adds the settings that a later process without
// privileges cannot write, and leaves out those of this process alone.
func (h *Host) Prepare(c *config.Config) error {
	return h.apply(Lasting(c, h.Facts()))
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
