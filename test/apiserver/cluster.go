//go:build linux

package apiserver

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/sluice-proxy/sluice/test/lab"
)

// assetsVar names the folder with kube-apiserver and etcd.
const assetsVar = "KUBEBUILDER_ASSETS"

// The ranges Services get their addresses from.
const (
	ServiceCIDR4 = "172.30.0.0/16"
	ServiceCIDR6 = "fd00:172:30::/64"
)

// Assets makes sure that there is a kube-apiserver and an etcd to run.
func Assets() error {
	dir := os.Getenv(assetsVar)
	if dir == "" {
		return fmt.Errorf("%s is not set, so there is no kube-apiserver and no etcd to test against: "+
			"run `make test-assets` to build them, and name their folder in %[1]s; go test -short leaves these tests out", assetsVar)
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
	Client kubernetes.Interface // as administrator, in no hurry to be polite
	Config *rest.Config         // of that client

	t       lab.T
	options Options
	env     *envtest.Environment
	dir     string
	one     *thread
}

// Options say how an API server differs from the ordinary one.
type Options struct {
	ServiceCIDR4 string // the range Services get IPv4 addresses from, in place of ServiceCIDR4
}

// Start starts an API server and its etcd. They end with t, or with the process.
func Start(t lab.T) *Cluster {
	t.Helper()
	return StartWith(t, Options{})
}

// StartWith is Start with another than the ordinary API server.
func StartWith(t lab.T, o Options) *Cluster {
	t.Helper()
	c := &Cluster{t: t, options: o, one: newThread()}
	t.Cleanup(c.one.end)
	if err := c.prepare(); err != nil {
		t.Fatalf("prepare the API server: %v", err)
	}
	log.SetLogger(logr.Discard()) // else envtest complains that nobody did
	err := c.one.do(func() error {
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
		t.Fatalf("make a client: %v", err)
	}
	if err := c.grant(); err != nil {
		t.Fatalf("give rights to %s: %v", user, err)
	}
	return c
}

// prepare says what to run and how. The ports and certificates stay the same
// when the API server is started again, because its folder is ours.
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
	c.env = &envtest.Environment{ControlPlaneStartTimeout: time.Minute, ControlPlaneStopTimeout: time.Second}
	c.env.ControlPlane.Etcd = &envtest.Etcd{Path: c.path("etcd-bound"), DataDir: c.path("etcd")}
	server := c.env.ControlPlane.GetAPIServer()
	server.Path, server.CertDir = c.path("kube-apiserver-bound"), c.path("certs")
	server.Configure().
		Set("service-cluster-ip-range", cmp.Or(c.options.ServiceCIDR4, ServiceCIDR4)+","+ServiceCIDR6).
		Set("advertise-address", "192.0.2.1") // it would look for an interface besides lo
	return nil
}

// EtcdURL is where etcd answers, without credentials.
func (c *Cluster) EtcdURL() string { return c.env.ControlPlane.Etcd.URL.String() }

func (c *Cluster) path(name string) string { return filepath.Join(c.dir, name) }

// bind makes a program that runs a server and dies with the thread that started
// it: a test that is killed leaves no server behind.
func (c *Cluster) bind(name string) error {
	script := fmt.Sprintf("#!/bin/sh\nexec setpriv --pdeathsig KILL \"$%s/%s\" \"$@\"\n", assetsVar, name)
	return os.WriteFile(c.path(name+"-bound"), []byte(script), 0o700)
}

// close stops both servers. They are killed if they take long, and that is no
// loss.
func (c *Cluster) close() { _ = c.one.do(c.env.Stop) }

// StopServer stops the API server; etcd goes on.
func (c *Cluster) StopServer() error {
	// Open watches hold it up until it is killed, which is as good.
	err := c.one.do(c.env.ControlPlane.GetAPIServer().Stop)
	for range 100 {
		if _, down := c.Client.Discovery().ServerVersion(); down != nil {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return errors.Join(errors.New("the API server still answers"), err)
}

// StartServer starts the API server again, where it was.
func (c *Cluster) StartServer() error { return c.one.do(c.env.ControlPlane.GetAPIServer().Start) }

// StopStore stops etcd, without which the API server is of no use.
func (c *Cluster) StopStore() error { return c.one.do(c.env.ControlPlane.Etcd.Stop) }

// StartStore starts etcd again, with what it knew.
func (c *Cluster) StartStore() error { return c.one.do(c.env.ControlPlane.Etcd.Start) }
