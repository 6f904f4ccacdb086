package ipvs

import (
	"context"
	"fmt"
	"net/netip"
	"time"
	"unsafe"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/netns"
)

// Check verifies that the kernel has a scheduler, and may load it: it adds a virtual server at an address for
// documentation, as kube-proxy does, and deletes it. Without the scheduler the error is ErrScheduler.
func (t *Table) Check(ctx context.Context, scheduler string) error {
	at := Server{Addr: netip.AddrFrom4([4]byte{198, 51, 100, 0}), Protocol: unix.IPPROTO_TCP, Port: 20000}
	return t.Apply(ctx, []Command{
		{Op: Set, Server: at, Settings: Settings{Scheduler: scheduler}}, {Op: Delete, Server: at},
	})
}

// Parameters returns the kernel parameters that virtual servers for Services need in a release of the kernel: conntrack
// for the packets of IPVS; no connection to a destination that is gone. A connection from a port that its client used
// within the last two minutes is scheduled again, which kernels before 5.9 delay by a second; there it goes to the
// destination of the previous one.
func Parameters(release string) []string {
	list := []string{
		"net/ipv4/vs/conntrack=1", "net/ipv4/vs/expire_nodest_conn=1", "net/ipv4/vs/expire_quiescent_template=1",
		"net/ipv4/ip_forward=1",
	}
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err == nil && (major < 5 || major == 5 && minor < 9) {
		list = append(list, "net/ipv4/vs/conn_reuse_mode=0")
	}
	return list
}

// Count returns the number of virtual servers of IPv4, without a listing: IPVS does not
// count those of IPv6 (ip_vs_ctl.c, do_ip_vs_get_ctl).
func (t *Table) Count(ctx context.Context) (int, error) {
	const getInfo = 64 + 1024 + 64 + 1 // IP_VS_SO_GET_INFO (ip_vs.h)
	var info struct{ version, tableSize, servers uint32 }
	err := netns.Do(t.netns, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }() // nothing was written
		size := uint32(unsafe.Sizeof(info))
		if _, _, code := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.IPPROTO_IP, getInfo,
			uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0); code != 0 {
			return code
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("count virtual servers: %w", err)
	}
	return int(info.servers), ctx.Err()
}

// SetTimeouts sets the timeouts that are not 0. The kernel keeps its own for the others (ip_vs_ctl.c,
// ip_vs_set_timeout).
func (t *Table) SetTimeouts(ctx context.Context, o Timeouts) error {
	if o == (Timeouts{}) {
		return nil
	}
	return t.session(ctx, func(s *session) error {
		to := number32(nil, attrTCP, uint32(o.TCP/time.Second))
		to = number32(to, attrTCPFin, uint32(o.TCPFin/time.Second))
		to = number32(to, attrUDP, uint32(o.UDP/time.Second))
		if _, err := s.execute(ctx, cmdSetConfig, netlink.Acknowledge, to); err != nil {
			return fmt.Errorf("set the timeouts of IPVS: %w", err)
		}
		return nil
	})
}
