//go:build linux

package deploy

import (
	"context"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/sluice-proxy/sluice/test/apiserver"
)

// system is the namespace of all deployments.
const system = "kube-system"

// cluster is a real API server, and kubectl and helm as its administrator.
type cluster struct {
	*apiserver.Cluster
	kubeconfig string
}

// newCluster returns a cluster with its system namespace and without roles for Sluice.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{Cluster: apiserver.Start(t)}
	ctx := t.Context()
	// Delete the rights that package apiserver grants: the manifests must grant them.
	must(t, c.Client.RbacV1().ClusterRoleBindings().Delete(ctx, "sluice", metav1.DeleteOptions{}))
	must(t, c.Client.RbacV1().ClusterRoles().Delete(ctx, "sluice", metav1.DeleteOptions{}))
	c.kubeconfig = filepath.Join(t.TempDir(), "admin.kubeconfig")
	must(t, clientcmd.WriteToFile(api.Config{
		CurrentContext: "test",
		Contexts:       map[string]*api.Context{"test": {Cluster: "test", AuthInfo: "test"}},
		Clusters: map[string]*api.Cluster{
			"test": {Server: "https://" + c.address(t).Host, CertificateAuthorityData: c.Config.CAData},
		},
		AuthInfos: map[string]*api.AuthInfo{
			"test": {ClientCertificateData: c.Config.CertData, ClientKeyData: c.Config.KeyData},
		},
	}, c.kubeconfig))
	return c
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// address returns the URL of the API server.
func (c *cluster) address(t *testing.T) *url.URL {
	t.Helper()
	host := c.Config.Host
	if u, err := url.Parse(host); err == nil && u.Host != "" {
		return u
	}
	return &url.URL{Scheme: "https", Host: host}
}

// kubectl runs kubectl and returns its output.
func (c *cluster) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	return run(t, append([]string{tool("kubectl"), "--kubeconfig=" + c.kubeconfig}, args...)...)
}

// helm runs helm and returns its output.
func (c *cluster) helm(t *testing.T, args ...string) string {
	t.Helper()
	return run(t, append([]string{tool("helm"), "--kubeconfig=" + c.kubeconfig, "--namespace=" + system}, args...)...)
}

// serviceAccountDir creates the folder that kubelet mounts for a service account.
func (c *cluster) serviceAccountDir(t *testing.T, name string) string {
	t.Helper()
	token, err := c.Client.CoreV1().ServiceAccounts(system).CreateToken(t.Context(), name,
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	must(t, err)
	dir := t.TempDir()
	for file, text := range map[string]string{
		"token": token.Status.Token, "ca.crt": string(c.Config.CAData), "namespace": system,
	} {
		must(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644))
	}
	return dir
}

// configMaps returns the ConfigMaps in the namespace system.
func (c *cluster) configMaps(t *testing.T) map[string]map[string]string {
	t.Helper()
	list, err := c.Client.CoreV1().ConfigMaps(system).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	out := map[string]map[string]string{}
	for _, m := range list.Items {
		out[m.Name] = m.Data
	}
	return out
}

// addNode creates a Node with an address, like kubelet.
func (c *cluster) addNode(t *testing.T, name, address string) {
	t.Helper()
	nodes := c.Client.CoreV1().Nodes()
	node, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() { _ = nodes.Delete(context.Background(), name, metav1.DeleteOptions{}) })
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
	_, err = nodes.UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
	must(t, err)
}
