package bpf

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/kernel/netns"
)

// selfTestTimeout bounds a self-test. A process that has not reported by then proves nothing.
const selfTestTimeout = 2 * time.Second

// services returns the Services of the self-test, by the loopback address of their backends. No host has the addresses of the
// Services (RFC 7600, RFC 6666). Programs balance UDP at port 53 only.
func services() map[netip.Addr]netip.AddrPort {
	return map[netip.Addr]netip.AddrPort{
		netip.AddrFrom4([4]byte{127, 0, 0, 1}): netip.MustParseAddrPort("192.0.0.8:53"),
		netip.IPv6Loopback():                   netip.MustParseAddrPort("[100::8]:53"),
	}
}

// check is a Service that the process of a self-test uses.
type check struct {
	protocol         uint8
	service, backend netip.AddrPort
	stop             func()
}

func (c check) args() []string {
	if c.protocol == unix.IPPROTO_TCP {
		return []string{byTCP + "/" + c.service.String()}
	}
	return []string{byUDP + "/" + c.service.String(), byConnectedUDP + "/" + c.service.String()}
}

// run starts a process in the cgroup, in the network namespace of the node, which connects to the Services. Before that it calls add with
// each Service.
func (t *selfTest) run(add func(check) error) error {
	if t.opt.Program == "" {
		return nil
	}
	var checks []check
	defer func() {
		for _, c := range checks {
			c.stop()
		}
	}()
	return netns.Do(t.opt.NetNS, func() (err error) {
		if checks, err = serveChecks(); err != nil {
			return fmt.Errorf("%w: %w", ErrUntested, err)
		}
		var args []string
		for _, c := range checks {
			if err := add(c); err != nil {
				return err
			}
			args = append(args, c.args()...)
		}
		return t.execute(args)
	})
}

// execute runs the client in the cgroup. The kernel kills the client if this thread ends.
func (t *selfTest) execute(args []string) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ctx, cancel := context.WithTimeout(context.Background(), selfTestTimeout)
	defer cancel()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, t.opt.Program, append([]string{clientArg}, args...)...)
	cmd.Args[0], cmd.Env, cmd.Dir, cmd.Stdout = "sluice", []string{}, "/", &out
	cmd.WaitDelay = selfTestTimeout
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(t.group.dir.Fd()), Pdeathsig: unix.SIGKILL}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%w: %w", ErrUntested, err)
	}
	err := cmd.Wait()
	report, whole := strings.CutSuffix(out.String(), clientEnd+"\n")
	problems := strings.Split(strings.TrimSpace(report), "\n")
	switch {
	case !whole:
		return fmt.Errorf("%w: %s has not reported: %w", ErrUntested, t.opt.Program, cmp.Or(ctx.Err(), err, io.ErrUnexpectedEOF))
	case report == "":
		return nil
	case slices.ContainsFunc(problems, func(line string) bool { return !strings.HasPrefix(line, noProof) }):
		return fmt.Errorf("%w: %s", ErrUnbalanced, strings.Join(problems, "; "))
	}
	return fmt.Errorf("%w: %s", ErrUntested, strings.Join(problems, "; "))
}

// serveChecks opens backends on loopback, for IPv4 and, if this host has it, for IPv6.
func serveChecks() (list []check, err error) {
	for at, service := range services() {
		tcp, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(at, 0)))
		if err != nil && at.Is6() {
			continue // there is no IPv6
		}
		if err != nil {
			return list, err
		}
		go greetConns(tcp)
		list = append(list, check{unix.IPPROTO_TCP, service, tcp.Addr().(*net.TCPAddr).AddrPort(), func() { _ = tcp.Close() }})
		udp, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at, 0)))
		if err != nil {
			return list, err
		}
		go greetDatagrams(udp)
		list = append(list, check{unix.IPPROTO_UDP, service, udp.LocalAddr().(*net.UDPAddr).AddrPort(), func() { _ = udp.Close() }})
	}
	return list, nil
}

// greetConns answers requests until the listener is closed.
func greetConns(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_ = c.SetDeadline(time.Now().Add(selfTestTimeout)) // it is not closed yet
		_, err = c.Read(make([]byte, 1))
		if err == nil {
			_, _ = c.Write([]byte(greeting)) // the client notices errors
		}
		_ = c.Close()
	}
}

func greetDatagrams(p *net.UDPConn) {
	b := make([]byte, 1)
	for {
		_, from, err := p.ReadFromUDPAddrPort(b)
		if err != nil {
			return
		}
		_, _ = p.WriteToUDPAddrPort([]byte(greeting), from) // the client notices errors
	}
}
