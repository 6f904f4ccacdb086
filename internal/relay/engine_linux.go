package relay

import (
	"context"
	"errors"
	"hash/maphash"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/sluice-proxy/sluice/internal/fair"
	"github.com/sluice-proxy/sluice/internal/linux/netns"
	"github.com/sluice-proxy/sluice/internal/relay/epoll"
	"github.com/sluice-proxy/sluice/internal/relay/socket"
)

// poller is the system of Linux: an epoll loop on a thread for each processor.
type poller struct {
	engine  *Engine
	workers []*worker
	waiting waiting
	udp     *udp
	hosts   *udpSockets
}

// worker is a loop and the state of its thread, and an eventLoop. All its methods must be called on that thread.
type worker struct {
	*epoll.Loop
	engine  *Engine
	waiting *waiting
	members map[*acceptor]struct{} // which have sockets on this worker
	tcp     tcpLoop
	udp     *udpLoop
}

// reset closes all sockets.
func (w *worker) reset() {
	for m := range w.members {
		m.reset()
	}
	w.udp.reset()
}

// clock returns the time of the loop, since the start of the engine.
func (w *worker) clock() time.Duration { return w.Now().Sub(w.engine.start) }

func newSystem(e *Engine) (system, error) {
	p := &poller{engine: e}
	p.hosts = &udpSockets{engine: e, budgets: newBudgets()}
	p.udp = &udp{engine: e, host: p.hosts}
	// A limit of CPU time lowers GOMAXPROCS, and another Engine that runs raises it.
	for range min(runtime.GOMAXPROCS(0), runtime.NumCPU()) {
		l, err := epoll.New()
		if err != nil {
			for _, w := range p.workers {
				w.Discard()
			}
			return nil, err
		}
		w := &worker{Loop: l, engine: e, waiting: &p.waiting, members: map[*acceptor]struct{}{}}
		w.tcp.init()
		w.udp = p.udp.add(w)
		p.workers = append(p.workers, w)
	}
	return p, nil
}

// fileLimit returns how many file descriptors this process may have.
func fileLimit() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 1024 // the default of Linux
	}
	return int(min(limit.Cur, 1<<30))
}

// maxListeners returns how many Listeners there may be by default, for a limit of file descriptors.
func maxListeners(files int) int { return max(files/2, 1) }

const (
	// udpMemory limits the memory of all UDP sockets of the machine, in pages. A socket that has
	// received a datagram keeps a page of it. Containers do not have the file.
	udpMemory = "/proc/sys/net/ipv4/udp_mem"

	// portRange is the range of ports for outgoing connections of a network namespace.
	portRange = "/proc/sys/net/ipv4/ip_local_port_range"
)

// maxFlows returns how many UDP flows there may be by default, for a limit of file descriptors. They use at most half
// of udpMemory, since the kernel drops the datagrams of all programs beyond it, and three quarters of the ports, since
// each needs one and other programs do too.
func maxFlows(namespace, files int) int {
	flows := files / 8
	if memory := numbers(udpMemory); len(memory) == 3 {
		flows = min(flows, memory[2]/2)
	}
	var ports []int
	_ = netns.Do(namespace, func() error { // the Engine reports that it cannot enter the namespace
		ports = numbers(portRange)
		return nil
	})
	if len(ports) == 2 {
		flows = min(flows, (ports[1]-ports[0]+1)*3/4)
	}
	return max(flows, 1)
}

// numbers returns the numbers in a file; nil if it cannot be read.
func numbers(file string) (list []int) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	for field := range strings.FieldsSeq(string(text)) {
		n, err := strconv.Atoi(field)
		if err != nil {
			return nil
		}
		list = append(list, n)
	}
	return list
}

func (p *poller) listen(s Spec) (server, error) {
	switch s.Protocol {
	case TCP:
		return p.listenTCP(s)
	case UDP:
		return p.udp.listen(s)
	}
	return nil, syscall.EPROTONOSUPPORT
}

func (p *poller) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	addProcs(len(p.workers))
	defer addProcs(-len(p.workers))
	var accepting, running sync.WaitGroup
	closed, errs := make([]func(), len(p.workers)), make([]error, len(p.workers))
	for i, w := range p.workers {
		accepting.Add(1)
		closed[i] = sync.OnceFunc(accepting.Done)
		running.Go(func() {
			defer closed[i]()
			defer cancel() // an engine without one of its loops is not useful
			errs[i] = w.Run(p.engine.options.NetNS)
		})
	}
	<-ctx.Done()
	for i, w := range p.workers {
		w.Post(func() {
			w.reset()
			closed[i]()
		})
	}
	accepting.Wait()
	for _, w := range p.workers { // to which others may have passed connections until now
		w.Post(func() {
			w.reset()
			w.tcp.end()
			w.End()
		})
	}
	running.Wait()
	p.hosts.close()
	return errors.Join(errs...)
}

// addProcs lets the Go runtime execute more goroutines at once. With one more for each loop, some are always
// free. If none were, the runtime would wake up a thread every 20 µs to see whether a loop that waits in
// epoll_wait(2) prevents a goroutine from running (retake in runtime/proc.go).
func addProcs(n int) { runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + n) }

func (p *poller) left(b *Balancer, gone []netip.AddrPort) {
	for _, w := range p.workers {
		w.Post(func() {
			w.tcp.left(b, gone)
		})
	}
	p.udp.left(b)
}

func (s *tcpServer) file() (*os.File, error) { return fileOf(s.fd) }

func (l *udpListener) file() (*os.File, error) {
	s, is := l.socket.(*fdSocket)
	if !is {
		return nil, errNoHandover
	}
	return fileOf(s.fd)
}

// fileOf returns a file for a duplicate of a file descriptor.
func fileOf(fd int) (*os.File, error) {
	fd, err := duplicate(uintptr(fd))
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "listening socket"), nil
}

// duplicate duplicates a file descriptor.
func duplicate(fd uintptr) (int, error) {
	n, err := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
	return n, os.NewSyscallError("fcntl", err)
}

// inherit returns a duplicate of an inherited socket, and closes the file. prepare sets the socket up.
func inherit(f *os.File, prepare func(fd int) error) (int, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return -1, errors.Join(err, f.Close())
	}
	fd := -1
	controlErr := raw.Control(func(of uintptr) { fd, err = duplicate(of) })
	if err = errors.Join(err, controlErr, f.Close()); err == nil {
		err = prepare(fd)
	}
	if err != nil && fd >= 0 {
		_ = unix.Close(fd)
		fd = -1
	}
	return fd, err
}

// reset closes a file descriptor, and resets its connection if it has one.
func reset(fd int) {
	socket.SetReset(fd)
	socket.Close(fd)
}

func (w *worker) after(d time.Duration, f func()) { w.Set(&epoll.Timer{}, time.Now().Add(d), f) }

func (w *worker) watch(s udpSocket, ready func()) error {
	return w.Add(s.(*fdSocket).fd, unix.EPOLLIN, readyFunc(ready))
}

func (w *worker) close(s udpSocket) { w.Close(s.(*fdSocket).fd) }

// readyFunc is a function as epoll.Handler.
type readyFunc func()

// Ready implements epoll.Handler.
func (f readyFunc) Ready(uint32) { f() }

// fdSocket is a udpSocket in an epoll loop.
type fdSocket struct {
	fd int
	at netip.AddrPort
}

// newFDSocket returns a socket with a file descriptor, and closes that if it fails.
func newFDSocket(fd int, err error) (udpSocket, error) {
	if err != nil {
		return nil, err
	}
	at, err := socket.Addr(fd)
	if err != nil {
		socket.Close(fd)
		return nil, err
	}
	return &fdSocket{fd: fd, at: at}, nil
}

func (s *fdSocket) local() netip.AddrPort { return s.at }

func (s *fdSocket) receive(b []byte) (int, netip.AddrPort, error) { return socket.Receive(s.fd, b) }

func (s *fdSocket) send(b []byte) error {
	if _, e := socket.Write(s.fd, b); e != 0 {
		return e
	}
	return nil
}

func (s *fdSocket) sendTo(b []byte, to netip.AddrPort) { _ = socket.SendTo(s.fd, b, to) }

// udpSockets is the udpHost of Linux.
type udpSockets struct {
	engine *Engine
	once   sync.Once // prepare

	mu      sync.Mutex
	raw     *socket.Refuser // nil: the program is not allowed to send ICMP errors
	budgets *budgets        // for ICMP errors
}

// prepare opens the sockets for ICMP errors in the network namespace of the thread, if it can.
func (u *udpSockets) prepare() {
	raw, err := socket.NewRefuser()
	if err != nil {
		u.engine.options.Log.Info("Clients get no ICMP error when a UDP backend refuses their datagrams",
			"reason", err.Error())
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.raw = raw
}

func (u *udpSockets) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.raw != nil {
		u.raw.Close()
		u.raw = nil
	}
}

func (u *udpSockets) listen(s Spec) (udpSocket, error) {
	fd := -1
	err := netns.Do(u.engine.options.NetNS, func() (err error) {
		u.once.Do(u.prepare)
		if s.Inherited != nil {
			fd, err = inherit(s.Inherited, socket.AdoptUDP)
			return err
		}
		fd, err = socket.ListenUDP(s.Addr)
		return err
	})
	return newFDSocket(fd, err)
}

// dial implements udpHost. It runs on the thread of a loop, in the network namespace of the sockets.
func (*udpSockets) dial(to netip.AddrPort) (udpSocket, error) {
	return newFDSocket(socket.DialUDP(to))
}

// refuse implements udpHost. It sends an ICMP error.
func (u *udpSockets) refuse(client, to netip.AddrPort, length int) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.raw != nil && u.budgets.take(client.Addr(), time.Now()) && u.raw.Refuse(client, to, length) == nil
}

// Limits of ICMP errors, in all and for each client, whose address may be a forged one: then its owner gets the
// errors. The kernel's limits (icmp_msgs_per_sec, icmp_ratelimit) do not apply to raw sockets.
const (
	refusalsPerSecond, refusalsAtOnce             = 1000, 50
	clientRefusalsPerSecond, clientRefusalsAtOnce = 10, 20
)

// budgets limits how many ICMP errors are sent. Clients with the same hash share a budget, so that memory is bounded.
type budgets struct {
	all     *rate.Limiter
	clients [1024]*rate.Limiter
	seed    maphash.Seed
}

func newBudgets() *budgets {
	b := &budgets{all: rate.NewLimiter(refusalsPerSecond, refusalsAtOnce), seed: maphash.MakeSeed()}
	for i := range b.clients {
		b.clients[i] = rate.NewLimiter(clientRefusalsPerSecond, clientRefusalsAtOnce)
	}
	return b
}

// take reports whether one more may be sent to a client.
func (b *budgets) take(client netip.Addr, now time.Time) bool {
	slot := maphash.Comparable(b.seed, fair.Network(client)) % uint64(len(b.clients))
	return b.clients[slot].AllowN(now, 1) && b.all.AllowN(now, 1)
}
