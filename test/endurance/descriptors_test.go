//go:build linux

package endurance

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
)

// TestClientsWithFewFileDescriptors runs Sluice with 64 file descriptors while clients outside
// keep many more connections to its servers, and reopen them.
func TestClientsWithFewFileDescriptors(t *testing.T) {
	for _, mode := range []string{"nftables", "iptables"} {
		for _, tt := range []struct {
			name, server, request string
		}{
			{"idle connections to the health port", "192.168.0.2:10256", ""},
			{"clients of metrics that never read", "192.168.0.2:10249", "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"},
			{"requests that never end", "192.168.0.2:10256", "GET /healthz HTTP/1.1\r\nHost"},
		} {
			t.Run(mode+"/"+tt.name, func(t *testing.T) { testFewFiles(t, mode, tt.server, tt.request) })
		}
	}
}

func testFewFiles(t *testing.T, mode, server, request string) {
	const limit = 64
	w := newTestEnv(t)
	w.args = append(w.args, "--proxy-mode="+mode, "--metrics-bind-address=0.0.0.0:10249",
		"--healthz-bind-address=0.0.0.0:10256")
	d := w.start(launch{restriction: fewFiles + strconv.Itoa(limit)})
	d.waitSynced(1)
	disconnect := w.connectMany(server, request)
	defer disconnect()
	cpu, began := d.cpu(), time.Now()
	to := netip.MustParseAddrPort(webIP4 + ":80")
	for round := range 10 {
		pod := round % 3
		written := time.Now()
		w.write("web.json", web(pod))
		w.waitAnsweredBy(w.client, to, pod)
		w.Logf("sixty connections followed a change within %v", time.Since(written).Round(time.Millisecond))
		// kubelet probes every ten seconds, and tolerates one failure.
		if code, body, err := w.get("192.168.0.2:10256", "/healthz"); err != nil || code != 200 {
			w.Errorf("kubelet's probe: %d %s, %v", code, body, err)
		}
	}
	w.Logf("%v of CPU within %v", d.cpu()-cpu, time.Since(began).Round(time.Millisecond))
	w.checkDiff()
	if n := d.openFiles(); n > limit-16 {
		w.Errorf("%d of %d file descriptors are open, want 16 to be free", n, limit)
	}
	if n := d.log.count("too many open files"); n > 0 {
		w.Errorf("too many open files is logged %d times:\n%s", n, d.log)
	}
	d.checkLoggedOnce("Too many clients are connected")
	d.checkAlive()
}

// connectMany opens 300 connections from outside, which send a request, if any, and never read.
// It reopens one after another until the returned function is called.
func (w *testEnv) connectMany(server, request string) (end func()) {
	w.Helper()
	ctx, cancel := context.WithCancel(w.Context())
	var all sync.WaitGroup
	all.Go(func() {
		conns := make([]net.Conn, 300)
		for i := 0; ctx.Err() == nil; i = (i + 1) % len(conns) {
			if conns[i] != nil {
				_ = conns[i].Close()
			}
			_ = w.lab.Outside.Do(func() (err error) {
				conns[i], err = net.DialTimeout("tcp", server, time.Second)
				return err
			})
			if conns[i] == nil {
				continue
			}
			_, _ = conns[i].Write([]byte(request))
			time.Sleep(100 * time.Microsecond)
		}
		for _, c := range conns {
			if c != nil {
				_ = c.Close()
			}
		}
	})
	return func() {
		cancel()
		all.Wait()
	}
}

// openFiles returns the number of open file descriptors of the daemon.
func (d *daemon) openFiles() int {
	d.w.Helper()
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.cmd.Process.Pid))
	d.w.must(err)
	return len(all)
}

// Health check node ports, whose number tenants control, do not exhaust the file descriptors.
func TestManyHealthCheckPortsWithFewFileDescriptors(t *testing.T) {
	w := newTestEnv(t)
	var all []any
	for i := range 100 {
		v4 := netip.AddrFrom4([4]byte{172, 30, 9, byte(1 + i)})
		objects := service(fmt.Sprintf("local-%d", i), v4.String(), lab.Analog(v4).String(), [2][]string{})
		spec := objects[0].(object)["spec"].(object)
		spec["type"], spec["externalTrafficPolicy"], spec["healthCheckNodePort"] = "LoadBalancer", "Local", 31000+i
		spec["ports"] = []object{{"port": 80, "nodePort": 31500 + i}}
		all = append(all, objects...)
	}
	w.write("local.json", all)
	d := w.start(launch{restriction: fewFiles + "64"})
	d.waitSynced(101)
	d.waitForLog("RLIMIT_NOFILE")
	to := netip.MustParseAddrPort(webIP4 + ":80")
	for round := range 3 {
		w.write("web.json", web(round))
		w.waitAnsweredBy(w.client, to, round)
	}
	if n := d.log.count("too many open files"); n > 0 {
		w.Errorf("too many open files is logged %d times", n)
	}
	w.checkDiff()
}
