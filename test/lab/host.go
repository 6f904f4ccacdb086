//go:build linux

package lab

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The range of client source ports, without the range of NodePorts.
const (
	firstClientPort, endOfClientPorts = 10000, 60000
	firstNodePort, endOfNodePorts     = 30000, 32768
)

// machine is a network namespace with its servers and processes.
type machine struct {
	*namespace
	name    string
	world   *topology
	outside bool     // several Hosts share the machine
	node    *machine // of a pod
	inner   string   // of a pod: its interface on the node

	addrs4, addrs6 netip.Addr // of a node: primary addresses

	clients atomic.Uint32 // number of ports that freshPort has returned

	mu      sync.Mutex
	closers []func()              // called before the namespace is closed
	sctp    map[string]*sctpStack // by family
	closed  bool
}

// Host is a machine of the lab as used by one test: a node, a pod, or an address of the outside host.
type Host struct {
	*machine
	t     T
	addrs []netip.Addr

	cgroup string                     // of the node or pod; empty: the cgroup of this process
	inside func(f func() error) error // opens sockets of clients; nil: do
}

// For returns the same host for another test.
func (h *Host) For(t T) *Host {
	other := *h
	other.t = t
	return &other
}

// WithoutCgroup returns the same host with clients in the cgroup of this process.
func (h *Host) WithoutCgroup() *Host { return &Host{machine: h.machine, t: h.t, addrs: h.addrs} }

// Name returns the name of the host.
func (h *Host) Name() string { return h.name }

// Addr returns the first address of the same family as like.
func (h *Host) Addr(like netip.Addr) netip.Addr {
	for _, a := range h.addrs {
		if a.Is4() == like.Is4() {
			return a
		}
	}
	return netip.Addr{}
}

// Addr4 returns the first IPv4 address.
func (h *Host) Addr4() netip.Addr { return h.Addr(netip.IPv4Unspecified()) }

// Addr6 returns the first IPv6 address.
func (h *Host) Addr6() netip.Addr { return h.Addr(netip.IPv6Unspecified()) }

// Addrs returns the addresses with which the host was created.
func (h *Host) Addrs() []netip.Addr { return h.addrs }

// NetNSFD returns a descriptor of the host's network namespace, valid until the host is removed.
// Libraries take it in options such as nftables.WithNetNSFd.
func (h *Host) NetNSFD() int { return h.fd }

// NetNSPath returns a path of the host's network namespace that is valid in this process and its children.
func (h *Host) NetNSPath() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), h.fd) }

// Cgroup returns the folder of the cgroup of node A or of a pod on it. It is empty without Options.Cgroups.
func (h *Host) Cgroup() string { return h.cgroup }

// asClient runs f in the host's namespace and cgroup.
func (h *Host) asClient(f func() error) error {
	if h.inside == nil {
		return h.do(f)
	}
	return h.inside(f)
}

// Do runs f on a thread in the host's namespace. Sockets that f opens and
// processes that it starts stay there; goroutines that it starts do not.
func (h *Host) Do(f func() error) error { return h.do(f) }

// Run runs a program in the host's namespace and returns its output. Input is its standard input.
func (h *Host) Run(input string, argv ...string) (string, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin = strings.NewReader(input)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	var out []byte
	err := h.do(func() error {
		var err error
		out, err = cmd.CombinedOutput()
		return err
	})
	if err != nil {
		return string(out), fmt.Errorf("run %s on %s: %w: %s", strings.Join(argv, " "), h.name, err, out)
	}
	return string(out), nil
}

// MustRun is Run without input, and fails the test on an error.
func (h *Host) MustRun(argv ...string) string {
	h.t.Helper()
	out, err := h.Run("", argv...)
	if err != nil {
		h.t.Fatalf("%v", err)
	}
	return out
}

// Nft applies rules in nft's language, in one transaction.
func (h *Host) Nft(rules string) {
	h.t.Helper()
	if _, err := h.Run(rules, "nft", "-f", "-"); err != nil {
		h.t.Fatalf("%v", err)
	}
}

// FlushConntrack deletes all conntrack entries of the host.
func (h *Host) FlushConntrack() error {
	return h.do(func() error {
		if err := netlink.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
			return fmt.Errorf("flush conntrack on %s: %w", h.name, err)
		}
		return nil
	})
}

// HintIptables creates kubelet's hint chain on a host, by which proxies choose this variant ("nft"
// or "legacy") of iptables.
func HintIptables(h *Host, variant string) error {
	_, err := h.Run("*mangle\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT\n", "iptables-"+variant+"-restore", "--noflush")
	return err
}

// Start starts a program in the host's namespace and kills it when the test ends. Wait returns the result of cmd.Wait.
func (h *Host) Start(cmd *exec.Cmd) (wait func() error, err error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	started, done := make(chan error, 1), make(chan error, 1)
	ended, over := context.WithCancel(context.Background())
	go func() {
		defer over()
		_ = h.do(func() error { // keep the thread: the program is killed when the thread that started it ends
			err := cmd.Start()
			started <- err
			if err == nil {
				done <- cmd.Wait()
			}
			return err
		})
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s on %s: %w", cmd.Path, h.name, err)
	}
	h.onClose(func() {
		_ = cmd.Process.Kill() // an error means that it has ended
		<-ended.Done()
	})
	return sync.OnceValue(func() error { return <-done }), nil
}

// StartClient starts a program like Start, in the cgroup of the host's clients (Options.Cgroups).
func (h *Host) StartClient(cmd *exec.Cmd) (wait func() error, err error) {
	if h.inside == nil {
		return h.Start(cmd)
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = unix.SIGKILL // the thread that starts it lives as long as the host
	if err := h.inside(cmd.Start); err != nil {
		return nil, fmt.Errorf("start %s on %s: %w", cmd.Path, h.name, err)
	}
	wait = sync.OnceValue(cmd.Wait)
	h.onClose(func() {
		_ = cmd.Process.Kill() // an error means that it has ended
		_ = wait()
	})
	return wait, nil
}

// onClose registers f to be called before the test or the machine ends, whichever is first.
func (h *Host) onClose(f func()) {
	once := sync.OnceFunc(f)
	h.t.Cleanup(once)
	h.machine.mu.Lock()
	defer h.machine.mu.Unlock()
	h.closers = append(h.closers, once)
}

// closeAll closes everything on the machine, and its namespace.
func (m *machine) closeAll() {
	m.mu.Lock()
	closers, closed := m.closers, m.closed
	m.closers, m.closed = nil, true
	m.mu.Unlock()
	if closed {
		return
	}
	for _, f := range closers {
		f()
	}
	m.namespace.close()
}
