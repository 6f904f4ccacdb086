package iptables

import (
	"crypto/sha256"
	"encoding/base32"

	"github.com/sluice-proxy/sluice/internal/route"
)

// The chains that belong to no single Service. They have kube-proxy's names and contents,
// so that its documentation and tools apply.
const (
	services    = "KUBE-SERVICES"
	external    = "KUBE-EXTERNAL-SERVICES"
	nodePorts   = "KUBE-NODEPORTS"
	firewall    = "KUBE-PROXY-FIREWALL"
	forward     = "KUBE-FORWARD"
	postrouting = "KUBE-POSTROUTING"
	markMasq    = "KUBE-MARK-MASQ"

	// localnet is a chain of kubelet, which adds the same rule to it.
	localnet = "KUBE-FIREWALL"

	// markOutside exists only while pods have several ranges of addresses, which kube-proxy does not support.
	markOutside = "KUBE-MARK-MASQ-NOT-POD"
)

// The chains that PortalsKind has in place of KUBE-SERVICES and KUBE-NODEPORTS in table nat,
// and in addition in table filter. They have the names of kube-proxy's mode userspace.
const (
	portalsContainer  = "KUBE-PORTALS-CONTAINER" // packets that arrive
	portalsHost       = "KUBE-PORTALS-HOST"      // packets that this node sends
	nodePortContainer = "KUBE-NODEPORT-CONTAINER"
	nodePortHost      = "KUBE-NODEPORT-HOST"
	nonLocal          = "KUBE-NODEPORT-NON-LOCAL"
)

// The prefixes of chains of a single Service port.
const (
	clusterPrefix  = "KUBE-SVC-" // to any usable endpoint
	localPrefix    = "KUBE-SVL-" // to endpoints on this node
	externalPrefix = "KUBE-EXT-" // from external addresses
	rangesPrefix   = "KUBE-FW-"  // from source ranges only
	endpointPrefix = "KUBE-SEP-"
)

// id identifies a Service port in the names of chains and in comments.
type id struct {
	text string // "default/web:http", as in comments
	hash string // "default/web:httptcp", from which names of chains are computed
}

func idOf(p route.PortID) id {
	text := p.Service.String()
	if p.Name != "" {
		text += ":" + p.Name
	}
	return id{text, text + p.Protocol.String()}
}

func (n id) external() string { return externalPrefix + hash(n.hash) }
func (n id) ranges() string   { return rangesPrefix + hash(n.hash) }

func (n id) endpoint(backend string) string { return endpointPrefix + hash(n.hash+backend) }

// hash is the first 80 bits of the SHA-256 sum in base 32: 16 characters.
func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return base32.StdEncoding.EncodeToString(sum[:10])
}

func (n id) pool(pool route.Pool) string {
	if pool == route.Local {
		return localPrefix + hash(n.hash)
	}
	return clusterPrefix + hash(n.hash)
}
