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

// TestClientsWithFewFileDescriptors runs Sluice with 64 file descriptors while clients
// outside have many more connections to its servers, and renew them.
func TestClientsWithFewFileDescriptors(t *testing.T) {
	for _, mode := range []string{"nftables", "iptables"} {
		for _, story := range []struct {
			name, server, request string
		}{
			{"idle connections to the health port", "192.168.0.2:10256", ""},
			{"clients of metrics that never read", "192.168.0.2:10249", "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"},
			{"requests that never end", "192.168.0.2:10256", "GET /healthz HTTP/1.1\r\nHost"},
		} {
			t.Run(mode+"/"+story.name, func(t *testing.T) { testFewFiles(t, mode, story.server, story.request) })
		}
	}
}

func testFewFiles(t *testing.T, mode, server, request string) {
	const limit = 64
	w := newWorld(t)
	w.args = append(w.args, "--proxy-mode="+mode, "--metrics-bind-address=0.0.0.0:10249", "--healthz-bind-address=0.0.0.0:10256")
	d := w.start(launch{hardship: fewFiles + strconv.Itoa(limit)})
	d.settled(1)
	crowd := w.crowd(server, request)
	defer crowd()
	cpu, began := d.cpu(), time.Now()
	to := netip.MustParseAddrPort(webIP4 + ":80")
	for round := range 10 {
		pod := round % 3
		written := time.Now()
		w.write("web.json", web(pod))
		w.answeredBy(w.client, to, pod)
		w.Logf("a change was seen by sixty connections after %v", time.Since(written).Round(time.Millisecond))
		// kubelet asks once in ten seconds, and takes one answer that fails for nothing.
		if code, body, err := w.get("192.168.0.2:10256", "/healthz"); err != nil || code != 200 {
			w.Errorf("kubelet's probe: %d %s, %v", code, body, err)
		}
	}
	w.Logf("%v of CPU within %v", d.cpu()-cpu, time.Since(began).Round(time.Millisecond))
	w.same()
	if n := d.descriptors(); n > limit-16 {
		w.Errorf("%d of %d file descriptors are open, want 16 to be free", n, limit)
	}
	if n := d.log.count("too many open files"); n > 0 {
		w.Errorf("the log has %d times too many open files:\n%s", n, d.log)
	}
	d.once("Too many clients are connected")
	d.alive()
}

// crowd makes 300 connections from outside that send a request, if any, and never
// read. One after the other is renewed until the function is called.
func (w *world) crowd(server, request string) (end func()) {
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

// descriptors is how many the daemon has open.
func (d *daemon) descriptors() int {
	d.w.Helper()
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.cmd.Process.Pid))
	d.w.must(err)
	return len(all)
}

// Health check node ports take no more file descriptors than there are to spare:
// tenants decide how many Services want one.
func TestManyHealthCheckPortsWithFewFileDescriptors(t *testing.T) {
	w := newWorld(t)
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
	d := w.start(launch{hardship: fewFiles + "64"})
	d.settled(101)
	d.says("RLIMIT_NOFILE")
	to := netip.MustParseAddrPort(webIP4 + ":80")
	for round := range 3 {
		w.write("web.json", web(round))
		w.answeredBy(w.client, to, round)
	}
	if n := d.log.count("too many open files"); n > 0 {
		w.Errorf("the log has %d times too many open files", n)
	}
	w.same()
}
