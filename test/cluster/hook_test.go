//go:build linux

package main

import (
	"bufio"
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// testHooks rolls out pods that wait in a preStop hook until Sluice says that they are drained. Clients use some
// connections for seconds, which would break without the hook. Without the answer of Sluice a pod would end after ten
// minutes, which is longer than any step of the test may take.
func testHooks(t *testing.T, c *testCluster) {
	f := c.startTrafficTo(t, "hook.yaml") // also on node B again
	for _, change := range [][]string{
		{"rollout", "restart", "deployment/web"},
		{"set", "env", "deployment/web", "WAIT=3s"},
	} {
		before := c.webPods(t)
		c.kubectl(t, change...)
		c.rollOut(t, "default", "deployment/web")
		c.kubectl(t, append([]string{"wait", "--for=delete", "--timeout=5m"}, before...)...)
	}
	for client, seen := range f.read(t) {
		if seen.Closed == 0 {
			t.Errorf("%s has used no connection for some time", client)
		}
	}
	f.end(t, allBackendsStay)
	c.checkWaits(t, map[string]int{"drained": 6})

	pod := c.webPods(t)[0]
	address := c.kubectl(t, "get", pod, "-o", "jsonpath={.status.podIP}")
	connected := c.connect(t, address)
	c.kubectl(t, "delete", "--timeout=5m", pod)
	connected() // until the pod has ended
	c.checkWaits(t, map[string]int{"drained": 6, "time_up": 1})
	c.kubectl(t, "delete", "deployment", "web") // other tests have pods without a hook
}

// webPods returns the pods of the Service, as arguments of kubectl.
func (c *testCluster) webPods(t testing.TB) []string {
	t.Helper()
	return strings.Fields(c.kubectl(t, "get", "pods", "-l", "app=web", "-o", "name"))
}

// connect opens a connection to a pod, and returns a function that waits until the pod ends it.
func (c *testCluster) connect(t testing.TB, address string) (wait func()) {
	t.Helper()
	cmd := c.on(controlPlane, "bash", "-c", fmt.Sprintf("exec 3<>/dev/tcp/%s/8080 && echo open && cat <&3", address))
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Signal(unix.SIGTERM) }) // an error means that it has ended
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "open\n" {
		t.Fatalf("connect to %s: %q, %v", address, line, err)
	}
	return func() { _ = cmd.Wait() } // an error means that the connection was reset
}

var waitsLine = regexp.MustCompile(`(?m)^sluice_drain_wait_duration_seconds_count{outcome="(\w+)"} (\d+)$`)

// checkWaits verifies how many waits of pods have ended on all nodes, by outcome, and that kubelet has reported the
// hooks that failed.
func (c *testCluster) checkWaits(t testing.TB, want map[string]int) {
	t.Helper()
	got := map[string]int{}
	for _, node := range nodeNames() {
		out, err := c.on(node, "curl", "-sf", "http://127.0.0.1:10249/metrics").Output()
		must(t, err)
		for _, m := range waitsLine.FindAllStringSubmatch(string(out), -1) {
			n, err := strconv.Atoi(m[2])
			must(t, err)
			got[m[1]] += n
		}
	}
	maps.DeleteFunc(got, func(_ string, n int) bool { return n == 0 })
	if !maps.Equal(got, want) {
		t.Errorf("waits of pods have ended with %v, want %v", got, want)
	}
	eventually(t, func() error {
		failed := c.kubectl(t, "get", "events", "--field-selector=reason=FailedPreStopHook", "-o", "name")
		if n := strings.Count(failed, "\n"); n != want["time_up"] {
			time.Sleep(time.Second) // each try runs a program
			return fmt.Errorf("%d hooks failed, want %d:\n%s", n, want["time_up"], failed)
		}
		return nil
	})
}
