package page

import (
	"golang.org/x/net/html"

	"github.com/sluice-proxy/sluice/internal/text"
)

// part is a part of an element: a child, text or an attribute.
type part interface{ addTo(n *html.Node) }

// node is an element with its content.
type node struct{ *html.Node }

// nodes are elements side by side.
type nodes []node

// words are text in a line.
type words string

// lines are text as it is.
type lines string

// attr is a name and a value.
type attr [2]string

func (n node) addTo(parent *html.Node) { parent.AppendChild(n.Node) }

func (l nodes) addTo(parent *html.Node) {
	for _, n := range l {
		n.addTo(parent)
	}
}

func (w words) addTo(parent *html.Node) { lines(text.Line(string(w))).addTo(parent) }

func (l lines) addTo(parent *html.Node) {
	parent.AppendChild(&html.Node{Type: html.TextNode, Data: string(l)})
}

func (a attr) addTo(n *html.Node) {
	if a != class("") {
		n.Attr = append(n.Attr, html.Attribute{Key: a[0], Val: a[1]})
	}
}

// el returns an element. html.Render escapes its text and attributes.
func el(tag string, parts ...part) node {
	n := node{&html.Node{Type: html.ElementNode, Data: tag}}
	for _, p := range parts {
		p.addTo(n.Node)
	}
	return n
}

func class(name string) attr { return attr{"class", name} }

// link returns a link to a URL of this page.
func link(to, label string) node { return el("a", attr{"href", to}, words(label)) }

// row is a row of a table, and where the text of some of its columns leads to.
type row struct {
	class string
	cells []text.Cell
	links map[string]string // by the title of the column
}

// table returns a table with the titles of the first row. It has explicit roles, because the style for small screens
// shows each row as a block, and browsers then no longer announce a table.
func table(caption string, rows []row) node {
	if len(rows) == 0 {
		return el("p", class("hint"), words(caption))
	}
	head, body := el("tr", attr{"role", "row"}), el("tbody", attr{"role", "rowgroup"})
	for _, c := range rows[0].cells {
		el("th", attr{"role", "columnheader"}, attr{"scope", "col"}, words(c[0])).addTo(head.Node)
	}
	for _, r := range rows {
		tr := el("tr", attr{"role", "row"}, class(r.class))
		for _, c := range r.cells {
			r.cell(c).addTo(tr.Node)
		}
		tr.addTo(body.Node)
	}
	return el("table", attr{"role", "table"}, el("caption", words(caption)),
		el("thead", attr{"role", "rowgroup"}, head), body)
}

func (r row) cell(c text.Cell) node {
	var content part = words(c[1])
	if to := r.links[c[0]]; to != "" {
		content = link(to, c[1])
	}
	td := el("td", attr{"role", "cell"}, attr{"data-title", c[0]}, content)
	if c[1] == "" {
		class("empty").addTo(td.Node)
	}
	return td
}

// facts returns names and values as a list of terms.
func facts(all []text.Cell) node {
	list := el("dl")
	for _, f := range all {
		if f[1] != "" {
			el("div", el("dt", words(f[0])), el("dd", words(f[1]))).addTo(list.Node)
		}
	}
	return list
}
