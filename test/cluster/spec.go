//go:build linux

package main

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
)

// Addresses of a cluster. Pods have 10.244.0.0/16 and fd00:10:244::/48, and the controller manager assigns a part of
// them to each node.
const (
	apiPort       = 6443
	apiService    = "10.96.0.1"
	dnsService    = "10.96.0.10"
	serviceRanges = "10.96.0.0/16,fd00:10:96::/112"
	podRanges     = "10.244.0.0/16,fd00:10:244::/48"
	apiName       = "kubernetes.default.svc"
)

// lan returns the addresses of the nth machine of a cluster; the first one is the control plane.
func lan(n int) []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix(fmt.Sprintf("192.168.0.%d/24", n)),
		netip.MustParsePrefix(fmt.Sprintf("fd00:192:168::%x/64", n)),
	}
}

func apiAddress() netip.Addr { return lan(1)[0].Addr() }

// Users, and the names of their kubeconfigs.
const (
	admin      = "admin"
	controller = "system:kube-controller-manager"
	scheduler  = "system:kube-scheduler"
)

// spec describes a cluster: the order to the process inside.
type spec struct {
	Dir         string
	Programs    map[string]string // paths, by name
	Images      []string          // archives
	Nodes       []string          // names
	Cgroups     []string          // folders
	Authority   []byte            // the certificate that signs the one of the API server
	Certificate []byte            // of the API server
	Key         []byte
	AccountKey  []byte            // signs tokens of ServiceAccounts
	Tokens      map[string]string // by user
}

// nodeNames are the nodes of each cluster, as in docs/migration.md.
func nodeNames() []string { return []string{"node-a", "node-b"} }

// identify creates the certificate, the keys and the tokens of a cluster.
func (s *spec) identify() (err error) {
	addresses := []net.IP{net.ParseIP(apiService), apiAddress().AsSlice()}
	if s.Certificate, s.Key, err = cert.GenerateSelfSignedCertKey("127.0.0.1", addresses,
		[]string{apiName, "kubernetes", "localhost"}); err != nil {
		return err
	}
	// Both certificates are in one text, the authority's last.
	last := bytes.LastIndex(s.Certificate, []byte("-----BEGIN"))
	s.Certificate, s.Authority = s.Certificate[:last], s.Certificate[last:]
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	s.AccountKey = pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	s.Tokens = map[string]string{}
	for _, user := range append([]string{admin, controller, scheduler}, nodeUsers(s.Nodes)...) {
		token := make([]byte, 16)
		if _, err := rand.Read(token); err != nil {
			return err
		}
		s.Tokens[user] = hex.EncodeToString(token)
	}
	return nil
}

func nodeUser(node string) string { return "system:node:" + node }

func nodeUsers(nodes []string) []string {
	var out []string
	for _, n := range nodes {
		out = append(out, nodeUser(n))
	}
	return out
}

func (s *spec) tokenFile() []byte {
	var text strings.Builder
	for user, token := range s.Tokens {
		group := ""
		switch {
		case user == admin:
			group = ",system:masters"
		case strings.HasPrefix(user, "system:node:"):
			group = ",system:nodes"
		}
		fmt.Fprintf(&text, "%s,%s,%s%s\n", token, user, user, group)
	}
	return []byte(text.String())
}

// kubeconfig returns the kubeconfig of a user. From the machine the API server has another address than its
// certificate.
func (s *spec) kubeconfig(user, server string) api.Config {
	return api.Config{
		CurrentContext: "sluice",
		Contexts:       map[string]*api.Context{"sluice": {Cluster: "sluice", AuthInfo: user}},
		Clusters: map[string]*api.Cluster{
			"sluice": {Server: "https://" + server, CertificateAuthorityData: s.Authority},
		},
		AuthInfos: map[string]*api.AuthInfo{user: {Token: s.Tokens[user]}},
	}
}
