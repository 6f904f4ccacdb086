//go:build linux

package apiserver

import (
	"context"
	"fmt"
	"os"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// user is the user name of Sluice in the API server. It has only the rights that Sluice needs.
const user = "system:serviceaccount:kube-system:sluice"

// grant gives the user the right to list and watch five kinds.
func (c *Cluster) grant() error {
	watches := []string{"list", "watch"}
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "sluice"},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"services", "nodes", "pods"}, Verbs: watches},
			{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: watches},
			{APIGroups: []string{"networking.k8s.io"}, Resources: []string{"servicecidrs"}, Verbs: watches},
		},
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "sluice"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}
	ctx := context.Background()
	if _, err := c.Client.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{}); err != nil {
		return err
	}
	_, err := c.Client.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{})
	return err
}

// UserConfig returns the configuration of a client with the rights of Sluice.
func (c *Cluster) UserConfig() (*rest.Config, error) {
	u, err := c.env.AddUser(envtest.User{Name: user}, nil)
	if err != nil {
		return nil, err
	}
	return u.Config(), nil
}

// Kubeconfig writes a kubeconfig for Sluice and returns its path. If server is not "", it
// replaces the URL of the API server.
func (c *Cluster) Kubeconfig(server string) (string, error) {
	u, err := c.env.AddUser(envtest.User{Name: user}, nil)
	if err != nil {
		return "", err
	}
	if server != "" {
		u.Config().Host = server
	}
	text, err := u.KubeConfig()
	if err != nil {
		return "", fmt.Errorf("create a kubeconfig: %w", err)
	}
	f, err := os.CreateTemp(c.dir, "*.kubeconfig")
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	_, err = f.Write(text)
	return f.Name(), err
}
