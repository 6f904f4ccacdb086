package iptables

import (
	"crypto/sha256"
	"encoding/base32"
	"strconv"
	"strings"

	"github.com/sluice-proxy/sluice/internal/cluster"
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

	// markOutside exists only while pods have several ranges of addresses, which kube-proxy
	// does not support.
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

// ids names the ports of a Service as kube-proxy does. The API server allows at most one
// port without a name; in manifests the second and later ones are named by number.
type ids struct {
	service string
	used    map[portName]bool
}

type portName struct {
	name     string
	protocol cluster.Protocol
	ip       route.Family
}

func newIDs(service cluster.Name) ids { return ids{service.String(), map[portName]bool{}} }

// of returns the id of the next port.
func (n ids) of(p *route.Port) id {
	name, at := p.Name, portName{p.Name, p.Protocol, p.Family}
	if n.used[at] && len(p.Frontends) > 0 {
		name = strings.TrimPrefix(name+"-"+strconv.Itoa(int(p.Frontends[0].Port)), "-")
	}
	n.used[at] = true
	text := n.service
	if name != "" {
		text += ":" + name
	}
	return id{text, text + p.Protocol.String()}
}

// idOf returns the id of one port of a Service.
func idOf(svc *route.Service, i int) id {
	n := newIDs(svc.Name)
	for j := range i {
		n.of(&svc.Ports[j])
	}
	return n.of(&svc.Ports[i])
}

func (n id) cluster() string  { return clusterPrefix + hash(n.hash) }
func (n id) local() string    { return localPrefix + hash(n.hash) }
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
		return n.local()
	}
	return n.cluster()
}

// comment returns the comment of a rule, which names the Service, in at most 255 bytes.
func comment(parts ...string) string {
	s := strings.Join(parts, "")
	return s[:min(len(s), maxComment)]
}

// maxComment is XT_MAX_COMMENT_LEN without the byte that ends it
// (linux/netfilter/xt_comment.h).
const maxComment = 255
