//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/test/harness"
)

// testCluster is a cluster that runs, with the programs to use it.
type testCluster struct {
	*running
	programs map[string]string
	work     string // folder of the shells of guides, and of the Sluice to upgrade from

	before programBefore
}

// start starts a cluster with CoreDNS, which nothing reaches before there is a service proxy.
func start(t *testing.T) *testCluster {
	t.Helper()
	programs, err := findPrograms()
	must(t, err)
	c := &testCluster{running: begin(t), programs: programs, work: t.TempDir()}
	c.waitFor(lastLine)
	c.prepareShell(t)
	must(t, c.client().applyCoreDNS(t.Context()))
	return c
}

// kubectl runs kubectl on the machine, and returns its output.
func (c *testCluster) kubectl(t testing.TB, args ...string) string {
	t.Helper()
	out, err := c.try(args...)
	must(t, err)
	return out
}

// try is kubectl with an error instead of a failed test.
func (c *testCluster) try(args ...string) (string, error) {
	return c.client().run(context.Background(), "", args...)
}

func (c *testCluster) client() kubectl { return kubectl{c.programs["kubectl"], kubeconfigIn(c.dir)} }

// rollOut waits until the pods of a workload are new and ready.
func (c *testCluster) rollOut(t testing.TB, namespace, workload string) {
	t.Helper()
	if err := c.client().rollOut(t.Context(), namespace, workload); err != nil {
		t.Fatalf("%v\n%s\n%s", err, c.kubectl(t, "get", "pods", "-A", "-o", "wide"), c.describe(namespace, workload))
	}
}

// describe returns the state of pods that are not ready, with the reasons.
func (c *testCluster) describe(namespace, workload string) string {
	_, name, _ := strings.Cut(workload, "/")
	events, _ := c.try("-n", namespace, "get", "events", "--sort-by=.lastTimestamp")
	if lines := strings.SplitAfter(events, "\n"); len(lines) > 20 {
		events = strings.Join(lines[len(lines)-20:], "")
	}
	logs, _ := c.try("-n", namespace, "logs", workload, "--all-pods", "--tail=20")
	return fmt.Sprintf("events of %s:\n%s\nlogs:\n%s", name, events, logs)
}

// checkMode verifies that Sluice serves in a mode, and is healthy, on each node. A changed ConfigMap reaches each pod
// after up to two minutes.
func (c *testCluster) checkMode(t testing.TB, mode string) {
	t.Helper()
	effective := regexp.MustCompile(`(?m)^Mode +` + mode + " ")
	pods := strings.Fields(c.kubectl(t, "-n", "kube-system", "get", "pods", "-o", "name",
		"-l", "app.kubernetes.io/name=sluice,app.kubernetes.io/component=proxy"))
	if len(pods) != len(nodeNames()) {
		t.Errorf("the pods of Sluice are %v, want one on each of %v", pods, nodeNames())
	}
	for _, pod := range pods {
		harness.Eventually(t, 3*time.Minute, func() error {
			out, err := c.try("-n", "kube-system", "exec", pod, "--", "sluice", "status")
			if err != nil || !strings.Contains(out, ": healthy") || !effective.MatchString(out) {
				time.Sleep(time.Second) // each try runs a program
				return errors.Join(err, fmt.Errorf("%s: want healthy, and mode %s:\n%s", pod, mode, out))
			}
			return nil
		})
	}
}

func (c *testCluster) on(machine string, argv ...string) *exec.Cmd {
	return exec.Command("/proc/self/exe", append([]string{"exec", "-dir=" + c.dir, machine, "--"}, argv...)...)
}

// traffic are clients on each node, which find the Service by DNS, and one outside, which uses the NodePort of node A.
type traffic struct {
	*testCluster
	outside *exec.Cmd
	counted *harness.Log
}

// enough connections of a client are made in a second on a quiet machine.
const enough = 60

// startTraffic starts servers and clients, and returns when all servers have answered each. They end with the test.
func (c *testCluster) startTraffic(t *testing.T) *traffic {
	t.Helper()
	return c.startTrafficTo(t, "web.yaml")
}

func (c *testCluster) startTrafficTo(t *testing.T, servers string) *traffic {
	t.Helper()
	c.rollOut(t, "kube-system", "deployment/coredns")
	for _, file := range []struct{ name, workload string }{
		{servers, "deployment/web"}, {"load.yaml", "daemonset/load"},
	} {
		c.kubectl(t, "apply", "-f", filepath.Join("testdata", file.name))
		c.rollOut(t, "default", file.workload)
	}
	f := &traffic{testCluster: c, counted: &harness.Log{}}
	f.outside = c.on(controlPlane, c.programs["pod"], "load", lan(2)[0].Addr().String()+":30080")
	f.outside.Stdout, f.outside.Stderr = f.counted, f.counted
	must(t, f.outside.Start())
	t.Cleanup(func() { f.stop() })
	eventually(t, func() error {
		for pod, seen := range f.read(t) {
			if len(seen.Backends) < 3 || seen.Connections < enough {
				return fmt.Errorf("%s has reached %v with %d connections", pod, seen.Backends, seen.Connections)
			}
		}
		return nil
	})
	return f
}

// clientCounts are the counters of the program pod.
type clientCounts struct {
	Connections int
	Lost        []string
	Backends    map[string]int
	Sources     map[string]int
	Unanswered  int
	Slowest     time.Duration
	Stalled     time.Duration
	Kept        string
	Closed      int
}

// read returns the counters of the clients on the nodes, by pod.
func (f *traffic) read(t testing.TB) map[string]clientCounts {
	t.Helper()
	out := map[string]clientCounts{}
	for pod := range strings.FieldsSeq(f.kubectl(t, "get", "pods", "-l", "app=load", "-o", "name")) {
		name := strings.TrimPrefix(pod, "pod/")
		text := f.kubectl(t, "get", "--raw", "/api/v1/namespaces/default/pods/"+name+":8081/proxy/")
		var seen clientCounts
		must(t, json.Unmarshal([]byte(text), &seen))
		out[name] = seen
	}
	if len(out) != len(nodeNames()) {
		t.Errorf("%d clients run", len(out))
	}
	return out
}

// stop ends the client outside, which then prints its counts.
func (f *traffic) stop() clientCounts {
	_ = f.outside.Process.Signal(unix.SIGTERM) // an error means that it has ended
	_ = f.outside.Wait()
	var seen clientCounts
	if err := json.Unmarshal([]byte(f.counted.String()), &seen); err != nil {
		seen.Lost = []string{fmt.Sprintf("no counts: %v: %s", err, f.counted)}
	}
	return seen
}

// keeps says whether a connection that was open from the start must continue.
type keeps int

const (
	allBackendsStay keeps = iota
	someBackendsEnd
)

// end verifies that no connection was lost, and returns how many there were.
func (f *traffic) end(t testing.TB, backends keeps) {
	t.Helper()
	all := f.read(t)
	all["outside"] = f.stop()
	f.kubectl(t, "delete", "daemonset", "load", "--wait") // the next one begins to count from 0
	var total int
	var slowest, stalled time.Duration
	for client, seen := range all {
		total += seen.Connections
		slowest, stalled = max(slowest, seen.Slowest), max(stalled, seen.Stalled)
		if len(seen.Lost) > 0 {
			t.Errorf("%s lost %d of %d connections, the last ones: %s",
				client, len(seen.Lost), seen.Connections, strings.Join(seen.Lost, "\n  "))
		}
		if seen.Connections < enough {
			t.Errorf("%s has made only %d connections", client, seen.Connections)
		}
		if backends == someBackendsEnd {
			// CoreDNS too: a question of a flow that it answered before may come between its end and the change of its
			// EndpointSlice
			continue
		}
		if seen.Unanswered > 0 {
			t.Errorf("%s: %d questions to the name server had no answer", client, seen.Unanswered)
		}
		if seen.Kept != "" {
			t.Errorf("%s: a connection that was open ended: %s", client, seen.Kept)
		}
	}
	t.Logf("%d connections, slowest %v; a client did not run for %v at most",
		total, slowest.Round(time.Millisecond), stalled.Round(time.Millisecond))
}

// TestCluster performs the tasks of an operator of Sluice in one real cluster, with traffic.
func TestCluster(t *testing.T) {
	c := start(t)
	t.Run("install", func(t *testing.T) { testInstall(t, c) })
	t.Run("plugin", func(t *testing.T) { testPlugin(t, c) })
	t.Run("ebpf", func(t *testing.T) { testEBPF(t, c) })
	t.Run("chart", func(t *testing.T) { testChart(t, c) })
	t.Run("drain", func(t *testing.T) { testDrain(t, c) })
	for _, mode := range []string{"nftables", "iptables", "ebpf", "userspace"} {
		t.Run("upgrade in mode "+mode, func(t *testing.T) { testUpgrade(t, c, mode) })
	}
	c.remove(t)
	for _, mode := range []string{"nftables", "iptables"} {
		t.Run("migration to mode "+mode, func(t *testing.T) { testMigration(t, c, mode) })
	}
}

// overlay returns the folder of a mode's manifests.
func overlay(mode string) string {
	if mode == "nftables" {
		mode = "base"
	}
	return absolute(filepath.Join("deploy/kubernetes", mode))
}

// install applies the manifests of a mode, on a cluster with the address of the API server.
func (c *testCluster) install(t testing.TB, mode string) {
	t.Helper()
	if _, err := c.try("-n", "kube-system", "get", "configmap", "sluice-apiserver"); err != nil {
		must(t, c.client().nameAPIServer(t.Context()))
	}
	c.kubectl(t, "apply", "-k", overlay(mode))
	c.rollOut(t, "kube-system", "daemonset/sluice")
	c.checkMode(t, mode)
}

// remove removes Sluice and its rules; those in iptables-legacy first, without which the other cleanup fails.
func (c *testCluster) remove(t testing.TB) {
	t.Helper()
	c.kubectl(t, "delete", "--ignore-not-found", "-k", overlay("nftables"))
	for _, cleanup := range []string{"cleanup-iptables", "cleanup-ebpf"} {
		dir := absolute("deploy/kubernetes/" + cleanup)
		c.kubectl(t, "label", "nodes", "--all", "sluice-cleanup=true")
		c.kubectl(t, "apply", "-k", dir)
		c.rollOut(t, "kube-system", "daemonset/sluice-cleanup")
		c.kubectl(t, "label", "nodes", "--all", "sluice-cleanup-")
		c.kubectl(t, "delete", "--wait", "-k", dir)
	}
	for _, node := range nodeNames() {
		if out, err := c.on(node, "nft", "list", "tables").CombinedOutput(); err != nil ||
			strings.Contains(string(out), "sluice") {
			t.Errorf("left on %s: %v\n%s", node, err, out)
		}
	}
	c.kubectl(t, "-n", "kube-system", "delete", "--ignore-not-found", "configmap", "sluice-apiserver")
}

// restart restarts Sluice with traffic, of which nothing is lost.
func (c *testCluster) restart(t *testing.T) {
	t.Helper()
	f := c.startTraffic(t)
	c.kubectl(t, "-n", "kube-system", "rollout", "restart", "daemonset/sluice")
	c.rollOut(t, "kube-system", "daemonset/sluice")
	f.end(t, allBackendsStay)
}

func testEBPF(t *testing.T, c *testCluster) {
	c.install(t, "ebpf")
	c.restart(t)
}

// testChart installs the chart, and upgrades it to each mode.
func testChart(t *testing.T, c *testCluster) {
	c.remove(t)
	for i, mode := range []string{"userspace", "nftables", "iptables", "ebpf"} {
		c.chart(t, []string{"install", "upgrade", "upgrade", "upgrade"}[i], mode)
		c.startTraffic(t).end(t, allBackendsStay)
	}
	c.helm(t, "uninstall", "sluice", "--wait")
}

// chart installs or upgrades the chart, with more values.
func (c *testCluster) chart(t *testing.T, verb, mode string, values ...string) {
	t.Helper()
	values = append(values, "apiServer.host="+apiAddress().String(), "config.clusterCIDR=10.244.0.0/16",
		"config.mode="+mode)
	c.helm(t, verb, "sluice", absolute("deploy/helm/sluice"), "--set="+strings.Join(values, ","))
	c.rollOut(t, "kube-system", "daemonset/sluice")
	c.checkMode(t, mode)
}

func (c *testCluster) helm(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.Command(filepath.Join(filepath.Dir(c.programs["kubectl"]), "helm"),
		append([]string{"--kubeconfig=" + kubeconfigIn(c.dir), "--namespace=kube-system"}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("helm %v: %v\n%s", args, err, out)
	}
}

// testDrain drains a node with traffic: its pods answer for some seconds after they were asked to end, and by then
// nothing reaches them. Then it rolls out pods that wait in a hook instead.
func testDrain(t *testing.T, c *testCluster) {
	c.remove(t)
	c.chart(t, "install", "nftables", "drainBindAddress=0.0.0.0:10261")
	f := c.startTraffic(t)
	c.kubectl(t, "drain", "node-b", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=2m")
	c.rollOut(t, "default", "deployment/web")
	f.end(t, someBackendsEnd)
	c.kubectl(t, "uncordon", "node-b")
	t.Run("hooks", func(t *testing.T) { testHooks(t, c) })
	c.helm(t, "uninstall", "sluice", "--wait")
}
