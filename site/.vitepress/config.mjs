// The site of docs/ and README.md, which stay as they are: all that GitHub shows differently is done here. `make site`
// runs this in .cache/site, which is two levels below the root of the project and has these pages.
import { existsSync, readdirSync, readFileSync, statSync } from 'node:fs'
import { posix, resolve } from 'node:path'
import sections from './sections.json'

const root = resolve('../..')
const repository = 'https://github.com/sluice-proxy/sluice'
const decisions = readdirSync(`${root}/docs/decisions`).filter((name) => /^\d+-.*\.md$/.test(name)).sort()

// address returns the path in the site of a page: README.md is the home, and docs/ has no folder of its own.
const address = (page) => page.replace(/^docs\//, '').replace(/(^|\/)README\.md$/, '$1index.md')

const isPage = (path) => /^(README|docs\/.+)\.md$/.test(path)

// titleOf returns the heading of a page as plain text.
const titleOf = (page) => readFileSync(`${root}/${page}`, 'utf8').match(/^# (.+)$/m)[1].replaceAll('`', '')

const item = (page, text) => ({ text, link: `/${address(page)}` })

// target returns where a relative link of a page leads to: a page of the site, or else a file at GitHub.
function target(page, href) {
	const [, path, anchor] = href.match(/^([^#]*)(.*)$/)
	let file = posix.join(posix.dirname(page), decodeURI(path)).replace(/\/$/, '')
	if (!existsSync(`${root}/${file}`)) {
		throw new Error(`${page}: ${href} leads nowhere`)
	}
	const folder = statSync(`${root}/${file}`).isDirectory()
	if (folder && isPage(`${file}/README.md`)) {
		file += '/README.md'
	}
	if (isPage(file)) {
		return `/${address(file)}${anchor}`
	}
	return `${repository}/${folder ? 'tree' : 'blob'}/main/${file}${anchor}`
}

function links(md) {
	md.core.ruler.push('links', ({ tokens, env }) => {
		const page = posix.relative(resolve('.'), env.realPath ?? env.path)
		for (const token of tokens.flatMap((block) => block.children ?? [])) {
			const href = token.type === 'link_open' ? token.attrGet('href') : '#'
			if (!/^(#|[a-z]+:)/.test(href)) {
				token.attrSet('href', target(page, href))
			}
		}
	})
}

export default {
	title: 'Sluice',
	description: 'A Kubernetes service proxy, a drop-in replacement for kube-proxy',
	base: process.env.SITE_BASE || '/',
	outDir: `${root}/site/dist`,
	rewrites: address,
	buildConcurrency: 1, // the search index gets the pages in one order, so that two builds are equal
	markdown: {
		// As GitHub makes anchors of headings; hack/pages verifies the links to them.
		anchor: { slugify: (title) => title.trim().toLowerCase().replace(/[^\p{L}\p{M}\p{N}\p{Pc} -]/gu, '').replaceAll(' ', '-') },
		config: links,
	},
	themeConfig: {
		search: { provider: 'local' },
		outline: [2, 3],
		nav: [{ text: 'GitHub', link: repository }],
		editLink: { pattern: `${repository}/edit/main/:path`, text: 'Edit this page' },
		sidebar: [
			...Object.entries(sections).map(([text, names]) => ({
				text,
				items: names.map((name) => item(`docs/${name}.md`, titleOf(`docs/${name}.md`).split(':')[0])),
			})),
			{
				text: 'Decisions',
				collapsed: true,
				items: [item('docs/decisions/README.md', 'All'), ...decisions.map((name) => item(`docs/decisions/${name}`, titleOf(`docs/decisions/${name}`)))],
			},
		],
	},
}
