//! An expression prepared for cutting: dead terms dropped, comparisons folded into their selects,
//! operands and numbers merged, and then covered with instructions, the largest that fit first.

use std::sync::LazyLock;

use manyhands_program::{Binary, Comparison, Unary};
use manyhands_program::{Expression, Term};

use super::superoperators::{Access, Code, MAX_SOURCES, Pattern, Piece, patterns};

/// The patterns to look for, the largest first.
static PATTERNS: LazyLock<Vec<Pattern>> = LazyLock::new(|| {
    let mut all = patterns();
    all.retain(|pattern| pattern.n_operations() > 0);
    all.sort_by_key(|pattern| std::cmp::Reverse(pattern.n_operations()));
    all
});

/// What a node computes; numbers are indexes of earlier nodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Node {
    Operand(usize),
    /// A number, by its bits.
    Number(u32),
    Unary(Unary, usize),
    Binary(Binary, usize, usize),
    /// The comparison is one of equal, less, less or equal.
    Select(Comparison, [usize; 4]),
}

/// The nodes of an expression, operands first.
pub(super) struct Graph {
    pub(super) nodes: Vec<Node>,
    /// The node of each result.
    pub(super) results: Vec<usize>,
    /// Whether a node is one number for all elements.
    pub(super) same: Vec<bool>,
    n_uses: Vec<usize>,
}

/// A node computed by one instruction from others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    pub(super) code: Code,
    pub(super) node: usize,
    /// The nodes that are its sources; no entry where there is no such source.
    pub(super) sources: [Option<usize>; MAX_SOURCES],
}

impl Graph {
    /// The graph of an expression whose operand `i` is one number for all where `is_same(i)`.
    pub(super) fn new(expression: &Expression, is_same: impl Fn(usize) -> bool) -> Graph {
        let live = live_terms(expression);
        let mut graph =
            Graph { nodes: Vec::new(), results: Vec::new(), same: Vec::new(), n_uses: Vec::new() };
        let mut node_of = vec![usize::MAX; expression.terms.len()];
        for (idx, term) in expression.terms.iter().enumerate().filter(|(idx, _)| live[*idx]) {
            let node = |term: u32| node_of[term as usize];
            node_of[idx] = match *term {
                Term::Operand(operand) => graph.leaf(Node::Operand(operand as usize), &is_same),
                Term::Number(number) => graph.leaf(Node::Number(number.to_bits()), &is_same),
                Term::Unary(op, a) => graph.push(Node::Unary(op, node(a)), &is_same),
                Term::Binary(op, a, b) => graph.push(Node::Binary(op, node(a), node(b)), &is_same),
                // Part of the selects that use it.
                Term::Compare(..) => usize::MAX,
                Term::Select(condition, yes, no) => {
                    let Term::Compare(comparison, a, b) = expression.terms[condition as usize]
                    else {
                        unreachable!("inference lets only comparisons choose")
                    };
                    let (a, b, yes, no) = (node(a), node(b), node(yes), node(no));
                    graph.push(normal_select(comparison, a, b, yes, no), &is_same)
                }
            };
        }
        graph.results = expression.results.iter().map(|term| node_of[*term as usize]).collect();
        graph.results.iter().for_each(|node| graph.n_uses[*node] += 1);
        graph
    }

    fn leaf(&mut self, node: Node, is_same: &impl Fn(usize) -> bool) -> usize {
        let known = self.nodes.iter().position(|other| *other == node);
        known.unwrap_or_else(|| self.push(node, is_same))
    }

    fn push(&mut self, node: Node, is_same: &impl Fn(usize) -> bool) -> usize {
        let same = match node {
            Node::Operand(operand) => is_same(operand),
            Node::Number(_) => true,
            _ => node.operands().all(|operand| self.same[operand]),
        };
        node.operands().for_each(|operand| self.n_uses[operand] += 1);
        self.nodes.push(node);
        self.same.push(same);
        self.n_uses.push(0);
        self.nodes.len() - 1
    }

    /// Whether a node is an operand or a number.
    pub(super) fn is_leaf(&self, node: usize) -> bool {
        matches!(self.nodes[node], Node::Operand(_) | Node::Number(_))
    }

    /// Covers the graph with instructions, in an order in which they can run.
    pub(super) fn cuts(&self) -> Vec<Cut> {
        let mut needed = vec![false; self.nodes.len()];
        self.results.iter().for_each(|node| needed[*node] = true);
        let mut cuts = Vec::new();
        for node in (0..self.nodes.len()).rev() {
            if !needed[node] || self.is_leaf(node) {
                continue;
            }
            let cut = self.cut(node);
            cut.sources.iter().flatten().for_each(|source| needed[*source] = true);
            cuts.push(cut);
        }
        cuts.reverse();
        cuts
    }

    fn cut(&self, node: usize) -> Cut {
        PATTERNS
            .iter()
            .find_map(|pattern| {
                let search = Search { graph: self, pattern, root: node };
                let sources = search.fit(pattern.whole(), node, [None; MAX_SOURCES])?;
                Some(Cut { code: pattern.code, node, sources })
            })
            .expect("every single operation on numbers is an instruction")
    }
}

/// A pattern laid over the nodes below `root`.
struct Search<'a> {
    graph: &'a Graph,
    pattern: &'a Pattern,
    root: usize,
}

type Sources = [Option<usize>; MAX_SOURCES];

impl Search<'_> {
    /// The sources with which a part of the pattern is the node, if it can be.
    fn fit(&self, part: usize, node: usize, sources: Sources) -> Option<Sources> {
        let shape = self.pattern.parts[part];
        if let Piece::Source(source) = shape {
            return self.bind(source, node, sources);
        }
        // A value that others need too, or that is the same for all elements, is computed once.
        let graph = self.graph;
        let alone = graph.n_uses[node] == 1 && graph.same[node] == graph.same[self.root];
        if node != self.root && !alone {
            return None;
        }
        match (shape, graph.nodes[node]) {
            (Piece::Unary(want, x), Node::Unary(op, a)) if want == op => self.fit(x, a, sources),
            (Piece::Binary(want, x, y), Node::Binary(op, a, b)) if want == op => {
                let straight = self.fit(x, a, sources).and_then(|sources| self.fit(y, b, sources));
                // Sums and products have the same bits either way round.
                let may_swap = matches!(op, Binary::Add | Binary::Mul);
                straight.or_else(|| {
                    let swapped = if may_swap { self.fit(x, b, sources) } else { None };
                    swapped.and_then(|sources| self.fit(y, a, sources))
                })
            }
            (Piece::Select(want, parts), Node::Select(comparison, of)) if want == comparison => {
                let pairs = parts.into_iter().zip(of);
                pairs.into_iter().try_fold(sources, |sources, (x, a)| self.fit(x, a, sources))
            }
            _ => None,
        }
    }

    fn bind(&self, source: usize, node: usize, mut sources: Sources) -> Option<Sources> {
        let same = self.graph.same[node];
        // Where the whole is one number, so is everything below it, and rows are arrays of sixteen.
        let fits = self.graph.same[self.root]
            || match self.pattern.access[source] {
                Access::Each => !same,
                Access::Same => same,
                Access::Any => true,
                Access::Absent => false,
            };
        if !fits || sources[source].is_some_and(|bound| bound != node) {
            return None;
        }
        sources[source] = Some(node);
        Some(sources)
    }
}

impl Node {
    fn operands(&self) -> impl Iterator<Item = usize> + use<> {
        let of = match *self {
            Node::Operand(_) | Node::Number(_) => [None; 4],
            Node::Unary(_, a) => [Some(a), None, None, None],
            Node::Binary(_, a, b) => [Some(a), Some(b), None, None],
            Node::Select(_, of) => of.map(Some),
        };
        of.into_iter().flatten()
    }
}

/// The select in terms of equal, less, and less or equal.
fn normal_select(comparison: Comparison, a: usize, b: usize, yes: usize, no: usize) -> Node {
    match comparison {
        Comparison::Eq | Comparison::Lt | Comparison::Le => {
            Node::Select(comparison, [a, b, yes, no])
        }
        Comparison::Ne => Node::Select(Comparison::Eq, [a, b, no, yes]),
        Comparison::Gt => Node::Select(Comparison::Lt, [b, a, yes, no]),
        Comparison::Ge => Node::Select(Comparison::Le, [b, a, yes, no]),
    }
}

/// Which terms the results need.
fn live_terms(expression: &Expression) -> Vec<bool> {
    let mut live = vec![false; expression.terms.len()];
    expression.results.iter().for_each(|term| live[*term as usize] = true);
    for idx in (0..live.len()).rev().collect::<Vec<_>>() {
        if !live[idx] {
            continue;
        }
        let needs: &[u32] = match &expression.terms[idx] {
            Term::Operand(_) | Term::Number(_) => &[],
            Term::Unary(_, a) => &[*a],
            Term::Binary(_, a, b) | Term::Compare(_, a, b) => &[*a, *b],
            Term::Select(condition, yes, no) => &[*condition, *yes, *no],
        };
        needs.iter().for_each(|term| live[*term as usize] = true);
    }
    live
}
