//go:build linux

package exact

import (
	"fmt"
	"net"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/test/harness"
)

// Addresses of a container inside of the pod, as of Docker or kind, and of the pod on their link. The container's
// address is in the pod CIDR of the node.
const nestedAddr, outerAddr, innerPort = "10.180.0.77", "172.17.0.1", 8088

// nest starts a container inside of the pod. There the address of the Service is one of an inner cluster, which the
// pod translates. It returns the network namespace of the container.
func (n *node) nest() (netns int) {
	n.Helper()
	pod := n.clients["pod"]
	n.must(pod.Do(func() error {
		l, err := net.Listen("tcp", fmt.Sprint(":", innerPort))
		if err == nil {
			n.Cleanup(func() { _ = l.Close() }) // nobody waits for it
			go n.answerStreams("inner", l)
		}
		return err
	}))
	p, err := harness.Start(pod, exec.Command("unshare", "--net", "sleep", "600"))
	n.must(err)
	var own, outer unix.Stat_t
	n.must(unix.Stat(fmt.Sprintf("/proc/self/fd/%d", pod.NetNSFD()), &outer))
	path := fmt.Sprintf("/proc/%d/ns/net", p.PID)
	harness.Eventually(n, timeout, func() error {
		if err := unix.Stat(path, &own); err != nil || own.Ino == outer.Ino {
			return fmt.Errorf("the process has no namespace of its own: %w", err)
		}
		return nil
	})
	pod.MustRun("ip", "link", "add", "nest", "type", "veth", "peer", "name", "eth0", "netns", fmt.Sprint(p.PID))
	pod.MustRun("ip", "link", "set", "nest", "up")
	pod.MustRun("ip", "address", "add", outerAddr+"/32", "peer", nestedAddr, "dev", "nest")
	pod.Nft(fmt.Sprintf("table ip inner { chain prerouting { type nat hook prerouting priority -100; "+
		"iif nest ip daddr %s tcp dport %d redirect to :%d; }; }", web4, port, innerPort))
	for command := range strings.SplitSeq("link set lo up|link set eth0 up|address add "+nestedAddr+"/32 "+
		"peer "+outerAddr+" dev eth0|route add default via "+outerAddr, "|") {
		pod.MustRun(append([]string{"nsenter", "--net=" + path, "ip"}, strings.Fields(command)...)...)
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	n.must(err)
	n.Cleanup(func() { _ = unix.Close(fd) }) // it was only entered
	return fd
}
