//go:build linux

package hostile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
	"github.com/sluice-proxy/sluice/test/machine"
)

const (
	// proxiedFiles is the RLIMIT_NOFILE of a daemon in mode userspace. With it the daemon forwards
	// proxiedConnections and proxiedFlows.
	proxiedFiles       = 512
	proxiedConnections = proxiedFiles / 4 * 3 / 2
	proxiedFlows       = proxiedFiles / 8

	// proxiedClients is how many connections an attacker tries to keep open.
	proxiedClients = 2 * proxiedConnections
)

// The backend that keeps its end of half-closed connections open, and the Service with UDP.
const (
	holdingIP, holdingPort   = "172.30.9.1", 81
	datagramIP, datagramPort = "172.30.9.2", 53
)

// proxied attack the sockets of the process in mode userspace, which has few file descriptors.
func proxied() []attack {
	slow := func(ctx context.Context, s *attackTest) error {
		client := badClient{"", "GET / HTTP/1.1\r\n", "X", 200 * time.Millisecond}
		client.connectMany(ctx, s.lab.Outside, at(nodeAddr, fixedNodePort).String(), proxiedClients)
		<-ctx.Done()
		return nil
	}
	rows := []attack{
		{name: "slow clients of a Service", during: slow, after: func(s *attackTest) { s.checkRefused("connections") }},
		{
			// The sockets of the other Services need file descriptors too.
			name: "slow clients of one Service beside many", before: serveMany, during: slow,
			after: func(s *attackTest) { s.checkRefused("connections") },
		},
		{
			// Neither side ends these connections: they end when their Service is deleted.
			name: "half-closed connections to a Service", flags: []string{"--drain-timeout=1s"}, before: serveHolding,
			during: func(ctx context.Context, s *attackTest) error {
				s.pause(ctx, 300*time.Millisecond)
				halfClose(ctx, s.lab.Outside, at(holdingIP, holdingPort).String(), proxiedClients)
				<-ctx.Done()
				return nil
			},
			after: func(s *attackTest) { s.checkRefused("connections") },
		},
		{name: "SYNs from forged addresses", during: floodSYNs, after: checkFlooded},
		{
			name: "UDP from very many ports", before: serveDatagrams, during: floodDatagrams,
			after: func(s *attackTest) { s.checkRefused("flows") },
		},
	}
	for i := range rows {
		a := &rows[i]
		before, after := a.before, a.after
		a.full = []plane{}
		a.planes = []plane{userspace}
		a.files = proxiedFiles
		a.duration = machine.Scale(2 * time.Second)
		a.limits = limits{memory: 100, cpu: 1}
		a.before = func(s *attackTest) {
			s.Helper()
			if before != nil {
				before(s)
			}
			s.checks = append(s.checks, s.sampleFiles)
		}
		a.after = func(s *attackTest) {
			s.Helper()
			after(s)
			s.checkFiles()
		}
	}
	return rows
}

// halfClose keeps n connections to an address whose client has sent all it will send, until the context ends.
func halfClose(ctx context.Context, from *lab.Host, address string, n int) {
	for range n {
		go func() {
			for ctx.Err() == nil {
				if conn, err := dial(from, address, time.Second); err == nil {
					stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
					_ = conn.(*net.TCPConn).CloseWrite()
					_, _ = io.Copy(io.Discard, conn)
					stop()
					_ = conn.Close()
				}
				select {
				case <-ctx.Done():
				case <-time.After(100 * time.Millisecond):
				}
			}
		}()
	}
}

// serveMany adds Services, whose sockets need a quarter of the file descriptors.
func serveMany(s *attackTest) {
	s.Helper()
	var all []object
	for i := range proxiedFiles / 4 / 2 {
		all = append(all, service(fmt.Sprintf("other-%d", i), fmt.Sprintf("172.30.10.%d", i+1), 0)...)
	}
	s.write("hostile.json", all)
}

// serveHolding adds a Service whose backend never closes a connection.
func serveHolding(s *attackTest) {
	s.Helper()
	pod := s.pods[0]
	var l net.Listener
	s.must(pod.Do(func() (err error) {
		l, err = net.Listen("tcp4", fmt.Sprintf(":%d", holdingPort))
		return err
	}))
	var conns []net.Conn
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conns = append(conns, conn)
		}
	}()
	s.Cleanup(func() {
		_ = l.Close()
		<-done
		for _, conn := range conns {
			_ = conn.Close()
		}
	})
	ports := []object{{"port": holdingPort}}
	s.write("hostile.json", []object{
		harness.Service("holding", object{"clusterIP": holdingIP, "ports": ports}),
		harness.EndpointSlice("holding", "IPv4", ports, harness.PodAddr(0).String()),
	})
}

// packetsPerMillisecond is the rate of floods.
const packetsPerMillisecond = 20

// flood sends packets from outside to node A, each made from a number, until the context ends.
func (s *attackTest) flood(ctx context.Context, packet func(n uint16) lab.Segment) error {
	from := s.sender(s.lab.Outside, s.lab.Outside.Interface(), s.lab.NodeA.Interface())
	defer func() { _ = unix.Close(from.fd) }()
	for n := uint16(0); ctx.Err() == nil; {
		for range packetsPerMillisecond {
			err := unix.Sendto(from.fd, packet(n).Packet(), 0, &from.to)
			if err != nil && !errors.Is(err, unix.ENOBUFS) {
				return fmt.Errorf("send a packet: %w", err)
			}
			n++
		}
		s.pause(ctx, time.Millisecond)
	}
	return nil
}

// floodSYNs sends SYNs from addresses that never answer.
func floodSYNs(ctx context.Context, s *attackTest) error {
	return s.flood(ctx, func(n uint16) lab.Segment {
		src := netip.AddrFrom4([4]byte{198, 18, byte(n >> 8), byte(n)})
		return lab.Segment{
			Protocol: lab.TCP, Src: netip.AddrPortFrom(src, 1024+n), Dst: at(nodeAddr, fixedNodePort), Flags: lab.SYN,
		}
	})
}

// checkFlooded verifies that the SYNs filled the queue of the socket, so that the kernel answered with cookies.
func checkFlooded(s *attackTest) {
	s.Helper()
	var names []string
	for line := range strings.Lines(s.lab.NodeA.MustRun("cat", "/proc/net/netstat")) {
		fields := strings.Fields(line)
		for i, name := range names {
			if name == "SyncookiesSent" && fields[i] != "0" {
				s.Logf("%s SYN cookies", fields[i])
				return
			}
		}
		names = fields
	}
	s.Error("no SYN cookie was sent: the flood did not fill the queue")
}

// serveDatagrams adds a Service with UDP. A client of it must be answered after each change.
func serveDatagrams(s *attackTest) {
	s.Helper()
	server := s.pods[0].Serve(lab.UDP, datagramPort)
	s.Cleanup(server.Close)
	ports := []object{{"port": datagramPort, "protocol": "UDP"}}
	s.write("hostile.json", []object{
		harness.Service("datagrams", object{"clusterIP": datagramIP, "ports": ports}),
		harness.EndpointSlice("datagrams", "IPv4", ports, harness.PodAddr(0).String()),
	})
	to := lab.Probe{Protocol: lab.UDP, To: at(datagramIP, datagramPort), Timeout: machine.Scale(100 * time.Millisecond)}
	s.checks = append(s.checks, func() {
		s.Helper()
		const tries = 10 // the flood fills the queue of the socket, and a client of UDP sends again
		for range tries {
			if s.client.Try(to).Outcome == lab.Answered {
				return
			}
		}
		s.recordFault(fmt.Sprintf("a datagram to %s, sent %d times", to.To, tries))
	})
}

// floodDatagrams sends datagrams from all ports of one client.
func floodDatagrams(ctx context.Context, s *attackTest) error {
	return s.flood(ctx, func(n uint16) lab.Segment {
		return lab.Segment{
			Protocol: lab.UDP, Src: at("192.168.0.1", n|1024), Dst: at(datagramIP, datagramPort), Payload: []byte("x"),
		}
	})
}

// checkRefused verifies that the daemon counts its refusals at a limit.
func (s *attackTest) checkRefused(reason string) {
	s.Helper()
	text, err := s.daemon.Get("http://" + metricsAt + "/metrics")
	s.must(err)
	series := fmt.Sprintf("sluice_userspace_refused_total{reason=%q} ", reason)
	_, rest, found := strings.Cut(string(text), series)
	value, _, _ := strings.Cut(rest, "\n")
	if n, err := strconv.ParseFloat(value, 64); !found || err != nil || n == 0 {
		s.Errorf("%s%q, want a number greater than 0", series, value)
		return
	}
	s.Logf("%s%s", series, value)
}

// openFiles returns how many file descriptors the daemon has open.
func (s *attackTest) openFiles() int {
	s.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.daemon.PID))
	s.must(err)
	return len(list)
}

// sampleFiles measures the file descriptors of the daemon during the attack.
func (s *attackTest) sampleFiles() { s.mostFiles = max(s.mostFiles, s.openFiles()) }

// checkFiles verifies that the attack left file descriptors for the rest of the daemon, and that all were closed
// after it.
func (s *attackTest) checkFiles() {
	s.Helper()
	const own = 60 // without connections and flows: files of the daemon, listening sockets, pipes
	if s.mostFiles > own+2*proxiedConnections+proxiedFlows {
		s.Errorf("%d file descriptors were open, want at most %d", s.mostFiles, own+2*proxiedConnections+proxiedFlows)
	}
	s.eventually(changeTimeout(), func() error {
		if n := s.openFiles(); n > own {
			return fmt.Errorf("%d file descriptors are open after the attack, want at most %d", n, own)
		}
		return nil
	})
	s.Logf("at most %d file descriptors, %d after the attack", s.mostFiles, s.openFiles())
}
