//go:build linux && record

package rules

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/sluice-proxy/sluice/test/apiserver"
	"github.com/sluice-proxy/sluice/test/lab"
)

// The rules are recorded when they have not changed for quiet, which must happen within timeout.
const (
	quiet   = 3 * time.Second
	timeout = time.Minute
)

// TestRecord records the rules of a real kube-proxy for every case.
func TestRecord(t *testing.T) {
	if err := apiserver.Assets(); err != nil {
		t.Fatal(err)
	}
	kubeProxy := filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kube-proxy")
	if path := os.Getenv("KUBE_PROXY"); path != "" {
		kubeProxy = path
	}
	withoutOwnEndpoints(t)
	c := apiserver.Start(t)
	_, err := c.Client.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "rules"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range Cases() {
		t.Run(k.Name, func(t *testing.T) {
			r := recorder{T: t, Cluster: c, program: kubeProxy, c: k}
			r.load()
			for _, v := range Variants() {
				t.Run(v.Name, func(t *testing.T) { r.For(t).record(v) })
			}
		})
	}
}

// withoutOwnEndpoints starts the API server so that it does not write the endpoints of its own
// Service, whose port differs each time.
func withoutOwnEndpoints(t *testing.T) {
	t.Helper()
	dir, real := t.TempDir(), os.Getenv("KUBEBUILDER_ASSETS")
	script := fmt.Sprintf("#!/bin/sh\nexec %q \"$@\" --endpoint-reconciler-type=none\n",
		filepath.Join(real, "kube-apiserver"))
	if err := errors.Join(
		os.WriteFile(filepath.Join(dir, "kube-apiserver"), []byte(script), 0o700),
		os.Symlink(filepath.Join(real, "etcd"), filepath.Join(dir, "etcd")),
	); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBEBUILDER_ASSETS", dir)
}

type recorder struct {
	*testing.T
	*apiserver.Cluster
	program string
	c       Case
}

// For returns the recorder for a subtest.
func (r recorder) For(t *testing.T) recorder {
	r.T = t
	return r
}

func (r recorder) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// record runs kube-proxy on a new node and records its rules.
func (r recorder) record(v Variant) {
	host := lab.New(r.T, lab.Options{}).NodeA
	r.Forward(r.T, host)
	var log bytes.Buffer
	cmd := exec.Command(r.program, "--config", r.config(), "--hostname-override", host.Name())
	cmd.Args[0] = "kube-proxy"
	cmd.Env = append(os.Environ(), "PATH="+programs(r.T, v)+":"+os.Getenv("PATH"))
	cmd.Stdout, cmd.Stderr = &log, &log
	wait, err := host.Start(cmd)
	r.must(err)
	rules := r.stableRules(host, v)
	r.must(cmd.Process.Signal(syscall.SIGTERM))
	_ = wait() // it ends with a signal error
	if rules == nil {
		r.Fatalf("the rules are not stable after %v:\n%s", timeout, log.String())
	}
	for _, line := range regexp.MustCompile(`(?m)^E\d{4} .*$`).FindAllString(log.String(), -1) {
		r.Logf("kube-proxy: %s", line)
	}
	for family, text := range rules {
		r.must(os.WriteFile(r.c.Recording(v, family), []byte(text), 0o644))
	}
}

// programs creates a folder with the programs of iptables of a variant.
func programs(t *testing.T, v Variant) string {
	t.Helper()
	path, err := exec.LookPath(v.Program)
	if err != nil {
		t.Fatalf("find a variant of iptables: %v", err)
	}
	dir := t.TempDir()
	for _, family := range Families() {
		for _, name := range []string{family, family + "-save", family + "-restore"} {
			if err := os.Symlink(path, filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

// config writes the configuration of the case, with a kubeconfig.
func (r recorder) config() string {
	text, err := os.ReadFile(r.c.Config())
	r.must(err)
	kubeconfig, err := r.Kubeconfig("")
	r.must(err)
	path := filepath.Join(r.TempDir(), "config.yaml")
	text = fmt.Appendf(text, "clientConnection: {kubeconfig: %q}\n", kubeconfig)
	r.must(os.WriteFile(path, text, 0o644))
	return path
}

// stableRules returns the rules of both families when they no longer change; nil after timeout.
func (r recorder) stableRules(host *lab.Host, v Variant) map[string]string {
	var last map[string]string
	since := time.Now()
	for deadline := time.Now().Add(timeout); time.Now().Before(deadline); time.Sleep(250 * time.Millisecond) {
		now, complete := map[string]string{}, true
		for _, family := range Families() {
			now[family] = withoutCounters(host.MustRun(v.Command(family, "save")))
			complete = complete && strings.Contains(now[family], "-j KUBE-SVC-")
		}
		if fmt.Sprint(now) != fmt.Sprint(last) {
			last, since = now, time.Now()
		}
		if complete && time.Since(since) > quiet {
			return last
		}
	}
	return nil
}

// withoutCounters removes timestamps and packet counters.
func withoutCounters(text string) string {
	for _, change := range [][2]string{{`(?m)^#.*\n`, ""}, {`\[\d+:\d+\]`, "[0:0]"}} {
		text = regexp.MustCompile(change[0]).ReplaceAllString(text, change[1])
	}
	return text
}

// load creates the objects of the case, and deletes them after the test.
func (r recorder) load() {
	r.Cleanup(r.clear)
	docs, err := r.c.Documents()
	r.must(err)
	for _, doc := range docs {
		var kind metav1.TypeMeta
		r.must(yaml.Unmarshal([]byte(doc), &kind))
		if err := r.create(kind.Kind, []byte(doc)); err != nil {
			r.Fatalf("%v in:\n%s", err, doc)
		}
	}
}

func (r recorder) create(kind string, doc []byte) error {
	ctx, opt := r.Context(), metav1.CreateOptions{FieldValidation: "Strict"}
	switch kind {
	case "Node":
		var n corev1.Node
		if err := yaml.UnmarshalStrict(doc, &n); err != nil {
			return err
		}
		made, err := r.Client.CoreV1().Nodes().Create(ctx, &n, opt)
		if err != nil {
			return err
		}
		made.Status = n.Status
		_, err = r.Client.CoreV1().Nodes().UpdateStatus(ctx, made, metav1.UpdateOptions{})
		return err
	case "EndpointSlice":
		var s discoveryv1.EndpointSlice
		if err := yaml.UnmarshalStrict(doc, &s); err != nil {
			return err
		}
		_, err := r.Client.DiscoveryV1().EndpointSlices(s.Namespace).Create(ctx, &s, opt)
		return err
	}
	return r.createService(ctx, doc)
}

func (r recorder) createService(ctx context.Context, doc []byte) error {
	var s corev1.Service
	if err := yaml.UnmarshalStrict(doc, &s); err != nil {
		return err
	}
	api := r.Client.CoreV1().Services(s.Namespace)
	if isOwn(s) {
		return r.checkOwnService(ctx, s)
	}
	made, err := api.Create(ctx, &s, metav1.CreateOptions{})
	if err != nil || len(s.Status.LoadBalancer.Ingress) == 0 {
		return err
	}
	made.Status = s.Status
	_, err = api.UpdateStatus(ctx, made, metav1.UpdateOptions{})
	return err
}

// checkOwnService verifies that the API server's own Service equals the one of the file.
func (r recorder) checkOwnService(ctx context.Context, want corev1.Service) error {
	got, err := r.Client.CoreV1().Services(want.Namespace).Get(ctx, want.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	p, q := want.Spec.Ports[0], got.Spec.Ports[0]
	if len(got.Spec.Ports) != 1 || p.Name != q.Name || p.Port != q.Port || want.Spec.ClusterIP != got.Spec.ClusterIP {
		return fmt.Errorf("the Service of the API server is %+v", got.Spec)
	}
	return nil
}

// isOwn reports whether a Service is the one that the API server creates.
func isOwn(s corev1.Service) bool { return s.Namespace == "default" && s.Name == "kubernetes" }

// clear deletes the objects of load.
func (r recorder) clear() {
	ctx := context.Background() // the context of the test has already ended
	services, err := r.Client.CoreV1().Services("").List(ctx, metav1.ListOptions{})
	r.must(err)
	for _, s := range services.Items {
		if !isOwn(s) {
			r.must(r.Client.CoreV1().Services(s.Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{}))
		}
	}
	for _, namespace := range []string{"default", "rules"} {
		r.must(r.Client.DiscoveryV1().EndpointSlices(namespace).DeleteCollection(ctx,
			metav1.DeleteOptions{}, metav1.ListOptions{}))
	}
	r.must(r.Client.CoreV1().Nodes().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
}
