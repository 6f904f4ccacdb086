package iptables

import (
	"crypto/sha256"
	"encoding/base32"
	"strconv"
	"strings"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

// The chains that several Services share. They are kube-proxy's, so that what
// people know and have written down about those is true of these.
const (
	services    = "KUBE-SERVICES"
	external    = "KUBE-EXTERNAL-SERVICES"
	nodePorts   = "KUBE-NODEPORTS"
	firewall    = "KUBE-PROXY-FIREWALL"
	forward     = "KUBE-FORWARD"
	postrouting = "KUBE-POSTROUTING"
	markMasq    = "KUBE-MARK-MASQ"

	// localnet is kubelet's too, and has the same rule there.
	localnet = "KUBE-FIREWALL"

	// markOutside is there only when the pods have several ranges of addresses,
	// for which kube-proxy has no rules.
	markOutside = "KUBE-MARK-MASQ-NOT-POD"
)

// The prefixes of chains that a Service port has for itself.
const (
	clusterPrefix  = "KUBE-SVC-" // to any usable endpoint
	localPrefix    = "KUBE-SVL-" // to endpoints on this node
	externalPrefix = "KUBE-EXT-" // from addresses meant for the outside
	rangesPrefix   = "KUBE-FW-"  // only from source ranges
	endpointPrefix = "KUBE-SEP-"
)

// id is a Service port, as its chains are named after it.
type id struct {
	text string // "default/web:http", as in comments
	hash string // "default/web:httptcp", which chains are named after
}

// ids names the ports of a Service as kube-proxy does. Of ports without a name,
// which only files have several of, the first has that name; the others are
// distinguished by number.
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

// of names the next port.
func (n ids) of(p *route.Port) id {
	name, at := p.Name, portName{p.Name, p.Protocol, p.Family}
	if n.used[at] && len(p.Fronts) > 0 {
		name = strings.TrimPrefix(name+"-"+strconv.Itoa(int(p.Fronts[0].Port)), "-")
	}
	n.used[at] = true
	text := n.service
	if name != "" {
		text += ":" + name
	}
	return id{text, text + p.Protocol.String()}
}

// idOf names one port of a Service.
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

// comment is what leads a person from a rule to its Service; nothing else in a
// rule may have more than 255 bytes.
func comment(parts ...string) string {
	s := strings.Join(parts, "")
	return s[:min(len(s), maxComment)]
}

// maxComment is XT_MAX_COMMENT_LEN without the byte that ends it
// (linux/netfilter/xt_comment.h).
const maxComment = 255
