package app

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/handover/listen"
	"github.com/sluice-proxy/sluice/internal/preflight"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// findings returns the lines of a preflight.
func findings(t *testing.T, o Options) string {
	t.Helper()
	o.Version, o.Reason = "v0.2.0", "the default"
	var b strings.Builder
	for _, f := range preflight.Judge(Preflight(t.Context(), o)) {
		c := f.Rows()[0].Cells
		fmt.Fprintf(&b, "%-7s  %-13s  %s\n", c[0][1], c[1][1], c[2][1])
	}
	return b.String()
}

func wantLines(t *testing.T, got string, want ...string) {
	t.Helper()
	for _, line := range want {
		if !strings.Contains(got, line) {
			t.Errorf("no line %q in\n%s", line, got)
		}
	}
}

// commands runs commands in a namespace.
func commands(t *testing.T, ns int, list ...string) {
	t.Helper()
	kerneltest.Do(t, ns, func() error {
		for _, c := range list {
			cmd := exec.Command("sh", "-c", c)
			cmd.Env = append(os.Environ(), "XTABLES_LOCKFILE="+filepath.Join(t.TempDir(), "lock"))
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w\n%s", c, err, out)
			}
		}
		return nil
	})
}

// Rules of another proxy are found, and stay as they are. Beside a Sluice its ports are no fault.
func TestPreflightBesideOthers(t *testing.T) {
	o := options(t, "--manifests="+manifests(t, webService))
	o.NetNS = kerneltest.Namespace(t)
	wantLines(t, findings(t, o),
		"supports mode nftables (the default)\n", "ok       other proxies  no other proxy, and no rules of kube-proxy\n",
		"ok       ports          free: 0.0.0.0:10256, 127.0.0.1:10249\n",
		"ok       version skew   not needed: Services come from manifests\n")
	commands(t, o.NetNS, "nft add table ip kube-proxy", "nft add chain ip kube-proxy services",
		"iptables-nft -t nat -N KUBE-SVC-NPX46M4PTMTKRN6Y")
	const left = "ok       other proxies  rules remain: "
	got := findings(t, o)
	wantLines(t, got, left+"nftables: table ip kube-proxy with 1 chain; Sluice removes them\n",
		left+"iptables-nft: 1 chain in iptables-nft nat")
	if again := findings(t, o); again != got {
		t.Errorf("the second time\n%s\nthe first time\n%s", again, got)
	}
	other := o
	other.Config = load(t, "--proxy-mode=iptables", "--manifests=x")
	if got := findings(t, other); strings.Contains(got, "iptables-nft nat") {
		t.Errorf("the mode that writes these chains takes them for those of kube-proxy:\n%s", got)
	}
	r := run(t, o)
	r.sync()
	r.drain()
	wantLines(t, findings(t, o),
		fmt.Sprintf("ok       other proxies  Sluice  runs in mode nftables (pid %d); this program is v0.2.0\n", os.Getpid()),
		"ok       ports          free: 0.0.0.0:10256 (Sluice), 127.0.0.1:10249 (Sluice)\n")
	if err := r.stop(); err != nil {
		t.Error(err)
	}
}

// A kube-proxy that writes the same chains is a stop, and one that writes others is not.
func TestPreflightBesideKubeProxy(t *testing.T) {
	for _, c := range []struct{ mode, want string }{
		{
			"nftables",
			"warning  other proxies  kube-proxy in mode iptables runs (it answers at 127.0.0.1:10249): " +
				"both serve until it is stopped",
		},
		{"iptables", "stop     other proxies  kube-proxy in mode iptables writes the same chains as mode iptables"},
	} {
		o := options(t, "--manifests=x", "--proxy-mode="+c.mode)
		o.NetNS = kerneltest.Namespace(t)
		kubeProxy := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			answer := map[string]string{"/configz": `{"kubeproxy.config.k8s.io":{"Mode":"iptables"}}`}[r.URL.Path]
			_, _ = w.Write([]byte(answer))
		}))
		l, err := listen.Opener{NetNS: o.NetNS}.Listen(t.Context(), "tcp", netip.MustParseAddrPort("127.0.0.1:10249"))
		if err != nil {
			t.Fatal(err)
		}
		kubeProxy.Listener = l
		kubeProxy.Start()
		got := findings(t, o)
		kubeProxy.Close()
		if i := strings.Index(got, "kube-proxy (pid "); i >= 0 { // this process is the kube-proxy
			pid := got[i+len("kube-proxy"):]
			got = strings.ReplaceAll(got, pid[:strings.Index(pid, ")")+1], "")
		}
		wantLines(t, got, c.want)
	}
}

// The version of the API server is asked for with the client of the configuration.
func TestPreflightAsksForTheVersion(t *testing.T) {
	status := http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/version" {
			t.Errorf("asked for %s", r.URL.Path)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(map[string]any{
			"gitVersion": "v1.30.1", "kind": "Status", "code": status, "reason": http.StatusText(status),
		})
	}))
	defer server.Close()
	o := options(t, "--master="+server.URL)
	o.NetNS = kerneltest.Namespace(t)
	wantLines(t, findings(t, o), "stop     version skew   "+server.URL+" is Kubernetes v1.30.1; to do: "+
		"use Kubernetes 1.31 or newer\n")
	status = http.StatusForbidden
	wantLines(t, findings(t, o), "warning  version skew   not compared: ask "+server.URL+
		" for its version: permission denied: ")
	server.Close()
	wantLines(t, findings(t, o), "stop     version skew   ask "+server.URL+" for its version: ")
	o.Config = load(t, "--kubeconfig=/nowhere")
	wantLines(t, findings(t, o), `stop     version skew   read kubeconfig "/nowhere": `)
}
