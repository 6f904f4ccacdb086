//go:build linux

package apiserver

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
	"github.com/sluice-proxy/sluice/test/machine"
)

// assetsVar is the environment variable with the folder of kube-apiserver and etcd.
const assetsVar = "KUBEBUILDER_ASSETS"

// The default ServiceCIDRs.
const (
	ServiceCIDR4 = "172.30.0.0/16"
	ServiceCIDR6 = "fd00:172:30::/64"
)

// Assets returns an error if there is no kube-apiserver or no etcd to run.
func Assets() error {
	dir := os.Getenv(assetsVar)
	if dir == "" {
		return fmt.Errorf("%s is not set, so there is no kube-apiserver and no etcd to test against: "+
			"run `make test-assets` to build them, and name their folder in %[1]s; go test -short leaves these tests out",
			assetsVar)
	}
	for _, name := range programs() {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("%s lacks a program, `make test-assets` builds it: %w", assetsVar, err)
		}
	}
	return nil
}

func programs() []string { return []string{"kube-apiserver", "etcd"} }

// Cluster is a real API server and its etcd.
type Cluster struct {
	Client kubernetes.Interface // as administrator, without rate limit
	Config *rest.Config         // of that client

	t       lab.T
	options Options
	env     *envtest.Environment
	dir     string
	thread  *thread
}

// Options are options of an API server.
type Options struct {
	ServiceCIDR4 string // the IPv4 ServiceCIDR; default: ServiceCIDR4
}

// Start starts an API server and its etcd. They stop when t or the process ends.
func Start(t lab.T) *Cluster {
	t.Helper()
	return StartWith(t, Options{})
}

// StartWith is Start with options.
func StartWith(t lab.T, o Options) *Cluster {
	t.Helper()
	c := &Cluster{t: t, options: o, thread: newThread()}
	t.Cleanup(c.thread.end)
	if err := c.prepare(); err != nil {
		t.Fatalf("prepare the API server: %v", err)
	}
	log.SetLogger(logr.Discard()) // without a logger envtest prints a warning
	err := c.thread.do(func() error {
		var err error
		c.Config, err = c.env.Start()
		return err
	})
	if err != nil {
		t.Fatalf("start the API server: %v", err)
	}
	t.Cleanup(c.close)
	c.Config.WarningHandler = rest.NoWarnings{}
	if c.Client, err = kubernetes.NewForConfig(c.Config); err != nil {
		t.Fatalf("create a client: %v", err)
	}
	if err := c.grant(); err != nil {
		t.Fatalf("grant rights to %s: %v", user, err)
	}
	return c
}

// prepare configures the servers. The ports and certificates stay the same when the API server
// is restarted, because its folder stays.
func (c *Cluster) prepare() error {
	var err error
	if c.dir, err = os.MkdirTemp("/run", "apiserver-"); err != nil {
		return err
	}
	c.t.Cleanup(func() { _ = os.RemoveAll(c.dir) })
	for _, sub := range []string{"certs", "etcd"} {
		if err := os.Mkdir(filepath.Join(c.dir, sub), 0o700); err != nil {
			return err
		}
	}
	for _, name := range programs() {
		if err := c.bind(name); err != nil {
			return err
		}
	}
	c.env = &envtest.Environment{
		ControlPlaneStartTimeout: machine.Scale(time.Minute), ControlPlaneStopTimeout: time.Second,
	}
	c.env.ControlPlane.Etcd = &envtest.Etcd{Path: c.path("etcd-bound"), DataDir: c.path("etcd")}
	server := c.env.ControlPlane.GetAPIServer()
	server.Path, server.CertDir = c.path("kube-apiserver-bound"), c.path("certs")
	server.Configure().
		Set("service-cluster-ip-range", cmp.Or(c.options.ServiceCIDR4, ServiceCIDR4)+","+ServiceCIDR6).
		Set("advertise-address", "192.0.2.1") // the default is the address of an interface other than lo
	return nil
}

// EtcdURL returns the URL of etcd, which needs no credentials.
func (c *Cluster) EtcdURL() string { return c.env.ControlPlane.Etcd.URL.String() }

// ServerPID returns the process of the API server. A restart changes it.
func (c *Cluster) ServerPID() (int, error) {
	for _, pid := range harness.Children(os.Getpid()) {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // empty if the process has ended
		if strings.Contains(string(line), "kube-apiserver\x00") && strings.Contains(string(line), c.path("certs")) {
			return pid, nil
		}
	}
	return 0, errors.New("no API server is running")
}

func (c *Cluster) path(name string) string { return filepath.Join(c.dir, name) }

// bind writes a script that runs a server and is killed when the thread that started it ends, so
// that no server outlives a killed test.
func (c *Cluster) bind(name string) error {
	script := fmt.Sprintf("#!/bin/sh\nexec setpriv --pdeathsig KILL \"$%s/%s\" \"$@\"\n", assetsVar, name)
	return os.WriteFile(c.path(name+"-bound"), []byte(script), 0o700)
}

// close stops both servers. They are killed after a timeout, which does no harm.
func (c *Cluster) close() { _ = c.thread.do(c.env.Stop) }

// StopServer stops the API server; etcd keeps running.
func (c *Cluster) StopServer() error {
	// Open watches delay the stop until envtest kills it, which is no error.
	err := c.thread.do(c.env.ControlPlane.GetAPIServer().Stop)
	for range 100 {
		if _, down := c.Client.Discovery().ServerVersion(); down != nil {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return errors.Join(errors.New("the API server still answers"), err)
}

// StartServer starts the API server again, with the same address.
func (c *Cluster) StartServer() error { return c.thread.do(c.env.ControlPlane.GetAPIServer().Start) }

// StopStore stops etcd, without which the API server cannot answer.
func (c *Cluster) StopStore() error { return c.thread.do(c.env.ControlPlane.Etcd.Stop) }

// StartStore starts etcd again, with its data.
func (c *Cluster) StartStore() error { return c.thread.do(c.env.ControlPlane.Etcd.Start) }
