// Package host gives the host the settings that the configuration wants: the
// size and the time-outs of connection tracking, and how readily the kernel
// kills this process. Settings decides, Apply does.
//
// A setting is written only if it is different. So a process without the
// privilege works where somebody with it, such as --init-only, was before.
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

// Options says which host is meant.
type Options struct {
	Root  string // folder that stands in for /; "": /
	NetNS int    // file descriptor of the network namespace; 0: the current one
}

// door reads and writes what the kernel shows in files.
type door interface {
	Get(name string) (string, error)
	Set(name, value string) error
}

// Host is the host this process runs on. Its methods may be called at any time.
type Host struct {
	parameters door // by name
	files      door // by path

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

// Facts are what the settings of a host depend on.
type Facts struct {
	CPUs int // that are online, whether this process may run on them or not
}

const onlineCPUs = "/sys/devices/system/cpu/online"

// Facts looks at the host. Where it does not tell its CPUs, those that this
// process may run on count.
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

// Bring gives the host what the configuration wants. An error names each
// setting that could not be made; the others are made. Whoever serves goes on.
func (h *Host) Bring(c *config.Config) error {
	return h.apply(Settings(c, h.Facts()))
}

// Prepare is Bring for --init-only: with what a later process without
// privileges cannot set, and without what belongs to this process alone.
func (h *Host) Prepare(c *config.Config) error {
	return h.apply(Lasting(c, h.Facts()))
}

func (h *Host) apply(settings []Setting) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.effects = h.Apply(settings)
	return Failed(h.effects)
}

// Effects returns what came of the settings that were made last.
func (h *Host) Effects() []Effect {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.effects)
}
