package ebpf_test

import (
	"bytes"
	"net"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/linux/bpf"
	"github.com/sluice-proxy/sluice/internal/linux/probe"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/test/lab"
)

// If the packet plane serves alone, because the self-test fails, programs of an earlier run do not send connections
// to backends that nothing updates any more.
func TestProgramsOfAnEarlierRunEndIfPacketsServeAlone(t *testing.T) {
	kerneltest.NeedPrograms(t)
	at := config.EBPF{Dir: filepath.Join(lab.BPFFS(t), "sluice"), Cgroup: lab.Cgroup(t)}
	ns := kerneltest.Namespace(t)
	conn, err := bpf.Open(bpf.Options{Dir: at.Dir, Cgroup: at.Cgroup, NetNS: ns, ConnectedUDP: true})
	if err != nil {
		t.Fatal(err)
	}
	var l net.Listener
	kerneltest.Do(t, ns, func() (err error) {
		l, err = net.Listen("tcp", "127.0.0.1:8080")
		return err
	})
	t.Cleanup(func() { _ = l.Close() }) // nothing was written to it
	pool, backend := bpf.Pool{1}, netip.MustParseAddrPort("127.0.0.1:8080")
	steps := []bpf.Step{
		{Entry: bpf.Slot{Pool: pool, Backend: backend, Weight: 1}.Entry()},
		{
			Entry: bpf.Frontend{
				At: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: unix.IPPROTO_TCP, Clients: bpf.OfNode, Pool: pool, Count: 1,
			}.Entry(),
		},
		{Entry: bpf.Entry{Key: bpf.Key{Table: bpf.Programs}, Value: conn.Version()}},
	}
	if err := conn.Write(t.Context(), steps); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil { // the first run ends
		t.Fatal(err)
	}
	inside := lab.Inside(t, at.Cgroup, ns)
	connect := func() error {
		return inside(func() error {
			c, err := net.DialTimeout("tcp", "10.96.0.1:80", time.Second)
			if err == nil {
				err = c.Close()
			}
			return err
		})
	}
	if err := connect(); err != nil {
		t.Fatalf("the first run does not balance: %v", err)
	}
	var log bytes.Buffer
	fails := func(bpf.Options) error { return probe.ErrFeature }
	openTestedBy(t, fails, plane.Setup{Config: &config.Config{MasqueradeMark: 0x4000, EBPF: at}}, &log)
	var balanced error
	for range 100 { // the kernel detaches programs some milliseconds after their pins are removed
		if balanced = connect(); balanced != nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if balanced == nil {
		t.Errorf("programs of the first run still send connections to its backends; the log is %s", &log)
	}
}
