package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/internal/answer/inspect"
	"github.com/sluice-proxy/sluice/internal/health"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/testing/podtest"
)

// sluicePod returns a pod of Sluice on a node.
func sluicePod(node string) corev1.Pod {
	p := pod("kube-system", "sluice-"+node, node, "")
	p.Labels = map[string]string{"app.kubernetes.io/name": "sluice", "app.kubernetes.io/component": "proxy"}
	p.Spec.Containers = []corev1.Container{{Name: "sluice", Command: []string{"sluice", "--config=x"}}}
	return p
}

func pod(namespace, name, node, address string) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	p.Spec.NodeName = node
	p.Status.Phase = corev1.PodRunning
	if address != "" {
		p.Status.PodIP, p.Status.PodIPs = address, []corev1.PodIP{{IP: address}}
	}
	return p
}

// healthyStatus is the status of the daemon on a node, ten seconds after a sync.
func healthyStatus(node string) inspect.Status {
	s := inspect.Status{Version: "v1.2.0", Mode: inspect.Mode{Name: "nftables"}}
	s.Health.State = health.Healthy
	s.Node.Name, s.At = node, time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	s.Since, s.LastSync.At = s.At.Add(-time.Hour), s.At.Add(-10*time.Second)
	return s
}

func printedStatus(t *testing.T, s inspect.Status) podtest.Result {
	t.Helper()
	text, err := json.Marshal(s)
	if err != nil {
		t.Error(err)
	}
	did := podtest.Result{Stdout: string(text) + "\n"}
	if s.Health.State != health.Healthy {
		did.Status = 1
	}
	return did
}

// kubectlSluice runs the plugin.
func kubectlSluice(t *testing.T, s *podtest.Server, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	return kubectlSluiceUntil(t.Context(), t, s, args...)
}

func kubectlSluiceUntil(
	ctx context.Context, t *testing.T, s *podtest.Server, args ...string,
) (stdout, stderr string, status int) {
	t.Helper()
	t.Setenv("KUBECONFIG", s.Start(t))
	var out, messages bytes.Buffer
	args = append([]string{"/usr/local/bin/kubectl-sluice"}, args...)
	status = Main(ctx, args, Env{Stdout: &out, Stderr: &messages})
	return out.String(), messages.String(), status
}

// Outliers come first, with how they differ: nodes without an answer by reason, then what is not healthy, and so on.
func TestPluginStatusShowsOutliersFirst(t *testing.T) {
	var s podtest.Server
	for _, node := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "i"} {
		s.Pods = append(s.Pods, sluicePod(node))
	}
	s.Pods[1].Status.Phase = corev1.PodPending
	s.Pods[1].Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "sluice", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}},
	}}
	old := sluicePod("a") // of a roll-out
	old.Name, old.Status.Phase = "sluice-old", corev1.PodFailed
	s.Pods = append(s.Pods, old)
	s.Run = func(_ *http.Request, pod string, command []string) podtest.Result {
		if want := []string{"sluice", "status", "-o", "json"}; !slices.Equal(command, want) {
			t.Errorf("the command is %q, want %q", command, want)
		}
		st := healthyStatus(strings.TrimPrefix(pod, "sluice-"))
		switch st.Node.Name {
		case "c":
			return podtest.Result{Stderr: "sluice: no Sluice is running\n", Status: 2}
		case "d":
			st.Health = health.Summary{State: health.Sick, Reason: "a write is overdue"}
			st.Warnings = []string{"the last write to the kernel failed"}
		case "e":
			st.Version = "v1.1.0"
		case "f":
			st.Mode.Name, st.Direct = "iptables", &plane.Direct{Checksum: "1a2b3c4d"}
		case "g":
			st.Warnings = []string{"server healthz: in use", "one", "two"}
		}
		return printedStatus(t, st)
	}
	stdout, stderr, status := kubectlSluice(t, &s, "status")
	want := `NODE  VERSION  MODE      HEALTH       LAST-SYNC  PROBLEMS
c     -        -         no answer    -          no Sluice is running
b     -        -         no answer    -          the pod is pending: ImagePullBackOff
d     v1.2.0   nftables  not healthy  10s ago    a write is overdue (+1 more)
e     v1.1.0   nftables  healthy      10s ago    most nodes run v1.2.0
f     v1.2.0   iptables  healthy      10s ago    most nodes use mode nftables (+1 more)
g     v1.2.0   nftables  healthy      10s ago    server healthz: in use (+2 more)
a     v1.2.0   nftables  healthy      10s ago    -
h     v1.2.0   nftables  healthy      10s ago    -
i     v1.2.0   nftables  healthy      10s ago    -
`
	if stdout != want || status != 2 {
		t.Errorf("status %d:\n%swant 2:\n%s", status, stdout, want)
	}
	if want := "\n9 nodes: 6 healthy, 1 not healthy, 2 did not answer, 2 unlike most\n"; stderr != want {
		t.Errorf("it says %q, want %q", stderr, want)
	}
}

// The exit status is that of the worst node, and JSON has everything that nodes said.
func TestPluginStatusForPrograms(t *testing.T) {
	s := podtest.Server{Pods: []corev1.Pod{sluicePod("a"), sluicePod("b")}}
	s.Run = func(_ *http.Request, pod string, _ []string) podtest.Result {
		if pod == "sluice-a" {
			return podtest.Result{Stdout: `{"version": "v9", "health": {"state": "healthy"}, "newer": [1]}`}
		}
		return podtest.Result{Stdout: `{"version": "v9", "health": {"state": "starting"}}`, Status: 1}
	}
	stdout, stderr, status := kubectlSluice(t, &s, "status", "-o", "json")
	var got struct {
		Items []struct {
			Node   string
			Status struct {
				Version string
				Newer   []int
			}
		}
	}
	if err := json.Unmarshal([]byte(stdout), &got); err != nil {
		t.Fatalf("%v:\n%s", err, stdout)
	}
	if len(got.Items) != 2 || got.Items[0].Node != "b" || !slices.Equal(got.Items[1].Status.Newer, []int{1}) {
		t.Errorf("want nodes b and a with a newer field:\n%s", stdout)
	}
	if status != 1 || stderr != "" {
		t.Errorf("status %d, %q, want 1 without a message", status, stderr)
	}
}

// A thousand nodes are asked some at a time.
func TestPluginStatusOfAThousandNodes(t *testing.T) {
	const nodes, most = 1000, 32
	var s podtest.Server
	for i := range nodes {
		s.Pods = append(s.Pods, sluicePod(fmt.Sprintf("node-%04d", i)))
	}
	var mu sync.Mutex
	now, peak := 0, 0
	full := make(chan struct{}) // closed once as many are asked as may be
	s.Run = func(r *http.Request, pod string, _ []string) podtest.Result {
		mu.Lock()
		if now++; now > peak {
			if peak = now; peak == most {
				close(full)
			}
		}
		mu.Unlock()
		select {
		case <-full:
		case <-r.Context().Done():
		}
		mu.Lock()
		defer mu.Unlock()
		now--
		if pod == "sluice-node-0500" {
			return podtest.Result{Stdout: "{"}
		}
		return printedStatus(t, healthyStatus(strings.TrimPrefix(pod, "sluice-")))
	}
	stdout, stderr, status := kubectlSluice(t, &s, "status")
	lines := strings.Split(stdout, "\n")
	if len(lines) != nodes+2 || !strings.HasPrefix(lines[1], "node-0500 ") ||
		!strings.HasSuffix(lines[1], "end of JSON input") {
		t.Errorf("%d lines, the first node is %q", len(lines), lines[1])
	}
	if want := "\n1000 nodes: 999 healthy, 1 did not answer\n"; stderr != want || status != 2 {
		t.Errorf("status %d, %q, want 2, %q", status, stderr, want)
	}
	if peak != most {
		t.Errorf("%d were asked at a time, want %d", peak, most)
	}
}

// A node that hangs does not answer in time.
func TestPluginStatusOfANodeThatHangs(t *testing.T) {
	s := podtest.Server{Pods: []corev1.Pod{sluicePod("a")}}
	s.Run = func(r *http.Request, _ string, _ []string) podtest.Result {
		<-r.Context().Done()
		return podtest.Result{}
	}
	stdout, stderr, status := kubectlSluice(t, &s, "status", "--request-timeout=1s")
	if !strings.Contains(stdout, " no answer within 1s\n") || status != 2 {
		t.Errorf("status %d:\n%s%s", status, stdout, stderr)
	}
}

// An interrupt leaves the answers that there are.
func TestPluginStatusInterrupted(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	s := podtest.Server{Pods: []corev1.Pod{sluicePod("a"), sluicePod("b")}}
	s.Pods[0].Status.Phase = corev1.PodPending
	ended := make(chan struct{})
	s.Run = func(*http.Request, string, []string) podtest.Result {
		interrupt()
		<-ended
		return podtest.Result{}
	}
	stdout, stderr, status := kubectlSluiceUntil(ctx, t, &s, "status")
	close(ended)
	if !strings.Contains(stdout, " the pod is pending: ") || !strings.Contains(stdout, " interrupted\n") || status != 2 {
		t.Errorf("status %d:\n%s%s", status, stdout, stderr)
	}
}

// Shells complete the names of nodes, and no files.
func TestPluginCompletesNodes(t *testing.T) {
	s := podtest.Server{Pods: []corev1.Pod{sluicePod("node-a"), sluicePod("node-b")}}
	for args, want := range map[string]string{
		"get services --node": "node-a\nnode-b\n:4\n", "get services": ":4\n",
	} {
		stdout, _, status := kubectlSluice(t, &s, append([]string{"__complete"}, append(strings.Fields(args), "")...)...)
		if stdout != want || status != 0 {
			t.Errorf("%s: status %d, %q, want %q", args, status, stdout, want)
		}
	}
}

// Commands run on the node that a person means, with their own arguments.
func TestPluginRunsCommandsOnANode(t *testing.T) {
	s := podtest.Server{Pods: []corev1.Pod{
		sluicePod("a"), sluicePod("b"), pod("default", "client", "b", "10.244.2.7"),
	}}
	windows := sluicePod("w")
	windows.Spec.Containers[0].Command[0] = `C:\hpc\sluice.exe`
	windows.Namespace = "net"
	s.Pods = append(s.Pods, windows)
	for _, tt := range []struct{ args, pod, command string }{
		{"get services -n shop --node=a -o wide", "sluice-a", "sluice get services --namespace=shop --output=wide"},
		{
			"get svc web db -l app=web --node a -o name", "sluice-a",
			"sluice get services --output=name --selector=app=web -- web db",
		},
		{"--node a get svc default/web", "sluice-a", "sluice get services -- default/web"},
		{"-n net get nodeports", "sluice-w", `C:\hpc\sluice.exe get nodeports`},
		{"events -w default/web --node b", "sluice-b", "sluice events --watch=true -- default/web"},
		{"diff --node b", "sluice-b", "sluice diff"},
		{"status --node b", "sluice-b", "sluice status"},
		{"status --node b -o json", "sluice-b", "sluice status --output=json"},
		{"explain 10.244.2.7 default/web:80", "sluice-b", "sluice explain -- 10.244.2.7 default/web:80"},
		{"explain default/client 10.96.0.1:443", "sluice-b", "sluice explain -- 10.244.2.7 10.96.0.1:443"},
		{"explain client default/web --node a", "sluice-a", "sluice explain -- 10.244.2.7 default/web"},
		{"explain node default/web --node a -o yaml", "sluice-a", "sluice explain --output=yaml -- node default/web"},
		{"explain 203.0.113.9 192.168.0.2:30080 --node a", "sluice-a", "sluice explain -- 203.0.113.9 192.168.0.2:30080"},
	} {
		t.Run(tt.args, func(t *testing.T) {
			s := s
			s.Run = func(_ *http.Request, pod string, command []string) podtest.Result {
				if got := strings.Join(command, " "); pod != tt.pod || got != tt.command {
					t.Errorf("in %s: %s\nwant in %s: %s", pod, got, tt.pod, tt.command)
				}
				return podtest.Result{Stdout: "answer\x1b[2J\n", Stderr: "message\n", Status: 3}
			}
			stdout, stderr, status := kubectlSluice(t, &s, strings.Fields(tt.args)...)
			if stdout != "answer\\u001b[2J\n" || stderr != "message\n" || status != 3 {
				t.Errorf("status %d, %q, %q, want those of the command", status, stdout, stderr)
			}
		})
	}
}

// An error says what was wrong and what to do.
func TestPluginErrors(t *testing.T) {
	s := podtest.Server{Pods: []corev1.Pod{
		sluicePod("node-a"), sluicePod("node-b"), pod("default", "pending", "", ""),
	}}
	s.Pods[1].Status.Phase = corev1.PodPending
	s.Run = func(*http.Request, string, []string) podtest.Result { return podtest.Result{Forbidden: true} }
	for args, want := range map[string]string{
		"get services":      "kubectl sluice: --node is required: Sluice runs on 2 nodes, such as node-a, node-b\n",
		"diff --node nodea": `kubectl sluice: no pod of Sluice on node "nodea": did you mean node-a?` + "\n",
		"diff --node other": `kubectl sluice: no pod of Sluice on node "other": ` +
			"Sluice runs on 2 nodes, such as node-a, node-b\n",
		"diff --node node-b": "kubectl sluice: node node-b: the pod is pending: no container runs (pod sluice-node-b)\n",
		"-n other status": "kubectl sluice: no pod in namespace other has the labels " +
			"app.kubernetes.io/name=sluice,app.kubernetes.io/component=proxy: --namespace and --selector, before the command, " +
			"say where Sluice is\n",
		"status": "kubectl sluice: commands in pods need the right to create pods/exec: " +
			`unable to upgrade connection: pods "sluice-node-a" is forbidden: cannot create pods/exec` + "\n",
		"diff --node node-a": "kubectl sluice: node node-a: commands in pods need the right to create pods/exec: " +
			`unable to upgrade connection: pods "sluice-node-a" is forbidden: cannot create pods/exec` + "\n",
		"explain 203.0.113.9 default/web": "kubectl sluice: 203.0.113.9 is the address of no pod: " +
			"--node names the node of the connection\n",
		"explain default/none default/web":    "kubectl sluice: find pod default/none: pods \"none\" not found\n",
		"explain default/pending default/web": "kubectl sluice: pod default/pending has no address yet\n",
		"explain a b c": "kubectl sluice: explain takes a source and a destination, or a destination only, " +
			"got 3 arguments; see sluice explain --help\n",
		"stats": "kubectl sluice: unknown command \"stats\", did you mean status?\n",
	} {
		stdout, stderr, status := kubectlSluice(t, &s, strings.Fields(args)...)
		wanted := 2
		if args == "stats" {
			wanted = 1
		}
		if stdout != "" || stderr != want || status != wanted {
			t.Errorf("%s: status %d, %q\n%swant %d\n%s", args, status, stdout, stderr, wanted, want)
		}
	}
	t.Setenv("HOME", t.TempDir())
	t.Setenv("KUBECONFIG", "")
	var messages bytes.Buffer
	Main(t.Context(), []string{"kubectl-sluice", "status"}, Env{Stdout: &messages, Stderr: &messages})
	want := "kubectl sluice: no kubeconfig names a cluster: set --kubeconfig or KUBECONFIG, as for kubectl\n"
	if messages.String() != want {
		t.Errorf("without a kubeconfig it says %q", &messages)
	}
}

// The bar is as wide as what was done, and is erased at the end.
func TestProgress(t *testing.T) {
	var out bytes.Buffer
	drawProgress(&out, 500, 1000)
	drawProgress(&out, 1000, 1000)
	bar := "[" + strings.Repeat("#", 20) + strings.Repeat(" ", 20) + "] 500 of 1000 nodes"
	if want := "\r" + bar + "\r" + strings.Repeat(" ", len(bar)+1) + "\r"; out.String() != want {
		t.Errorf("it draws %q, want %q", &out, want)
	}
	drawProgress(nil, 1, 2) // no terminal
}
