"""The words that instructions are made of: findings, places, denials, and what XFlow does not answer.

Plain tables, read by :mod:`.sentence` and :mod:`.instruction`. An entry is one or more lower-case words and ends with a
comma. The longest entry that fits is taken; a plural ``s`` need not be listed. Synonyms agree with the mention lists of
the CheXpert labeler (Irvin et al., 2019) but for heart failure, which those count as edema: where words mean several
findings, they are in ``AMBIGUOUS`` and the user is asked.
"""

from __future__ import annotations

from dataclasses import dataclass


def _terms(text: str) -> tuple[str, ...]:
    return tuple(" ".join(term.split()) for term in text.split(",") if term.strip())


# What a finding is called without any assumption.
NAMES = {
    "cardiomegaly": _terms("cardiomegaly"),
    "pneumonia": _terms("pneumonia"),
    "atelectasis": _terms("atelectasis, atelectases, pulmonary atelectasis, lung atelectasis"),
    "opacity": _terms("opacity, opacities, lung opacity, lung opacities, pulmonary opacity, pulmonary opacities"),
    "consolidation": _terms("consolidation, lung consolidation, pulmonary consolidation"),
    "edema": _terms("edema, pulmonary edema, lung edema"),
    "effusion": _terms("effusion, pleural effusion"),
}

# Other words for it; taken with a note.
SYNONYMS = {
    "cardiomegaly": _terms("""
        cmg, cardiomegalic, megalocardia, cardiac hypertrophy, heart hypertrophy, cardiothoracic ratio,
        cardio thoracic ratio, ctr
    """),
    "pneumonia": _terms("""
        pna, bronchopneumonia, broncho pneumonia, lobar pneumonia, bronchial pneumonia, pleuropneumonia,
        chest infection, lung infection, pulmonary infection, respiratory infection,
        lower respiratory tract infection, lrti, infection, infectious process, infective process, infectious focus,
        pneumonic process, pneumonic change, pneumonic focus, community acquired pneumonia,
        hospital acquired pneumonia, ventilator associated pneumonia, hcap, cap, hap, vap, aspiration pneumonia,
        viral pneumonia, covid pneumonia, covid 19 pneumonia
    """),
    "atelectasis": _terms("""
        atel, atelectatic, atelectatic change, atelectatic lung, atelectatic band, atelectatic opacity,
        atelectatic opacities, atelectatic density, atelectatic densities, collapse, collapsed, lung collapse,
        lobar collapse, collapsed lobe, volume loss, loss of volume, loss of lung volume, reduced volume,
        reduced lung volume
    """),
    "opacity": _terms("""
        nodular opacity, nodular opacities, mass like opacity, masslike opacity, opacification, opacified,
        airspace opacity, airspace opacities, air space opacity, air space opacities, airspace opacification,
        air space opacification, airspace disease, air space disease, airspace shadowing, air space shadowing,
        airspace process, air space process, parenchymal opacity, parenchymal opacities, infiltrate, infiltration,
        infiltrative change, ground glass, groundglass, ground glass opacity, ground glass opacities,
        groundglass opacity, groundglass opacities, ground glass change, ground glass density,
        ground glass attenuation, ground glass opacification, ground glass shadowing, ggo, haziness, haze, hazy,
        hazy opacity, hazy opacities, hazy density, cloudiness, cloudy, cloudy area, density, densities,
        increased density, increased opacity, shadow, shadowing, lung shadow, white out, whiteout, white lung,
        opaque, opaque area
    """),
    "consolidation": _terms("""
        consol, consolidative, consolidated, consolidated lung, consolidative opacity, consolidative opacities,
        consolidative change, consolidative process, consolidative density, airspace consolidation,
        air space consolidation, hepatization, mass like consolidation
    """),
    "edema": _terms("""
        oedema, edemas, edematous, oedematous, pulmonary oedema, lung oedema, pulmonary congestion, lung congestion,
        vascular congestion, pulmonary vascular congestion, pulmonary venous congestion, venous congestion,
        congested lung, congested lungs, interstitial edema, interstitial oedema, alveolar edema, alveolar oedema,
        wet lung
    """),
    "effusion": _terms("""
        pleural fluid, pleural fluid collection, fluid collection, pleural collection, hydrothorax, hydrothoraces,
        hydro thorax, eff, pleff, pl effusion, pl eff, pleural eff, pleural liquid, fluid,
        pleural fluid accumulation, fluid accumulation
    """),
}

# These are a sign of effusion where a costophrenic angle is named, and nothing anywhere else.
ANGLE_SIGNS = _terms("blunting, blunted, blunt, obliterated, obliteration, obliterating")

# What a finding looks like, rather than its name; taken with a note.
SIGNS = {
    "consolidation": _terms("air bronchogram, airbronchogram"),
    "edema": _terms("""
        kerley line, kerley b line, kerley a line, septal line, cephalization, cephalisation, bat wing, batwing,
        batwing opacities, bat wing opacities, peribronchial cuffing
    """),
    "effusion": (*ANGLE_SIGNS, *_terms("meniscus sign, meniscus")),
}

# The heart and words that say it is large make cardiomegaly, wherever the one stands beside the other.
HEART = _terms("""
    heart, cardiac, cardiac silhouette, cardiac shadow, heart shadow, heart silhouette, cardiac contour,
    heart contour, cardiac outline, cardiac border
""")
HEART_SIZE = _terms("""
    heart size, cardiac size, size of the heart, cardiac silhouette size, size of the cardiac silhouette,
    cardiac shadow size, size of heart, heart too large, heart too big, cardiac dimension
""")
LARGE = _terms("""
    enlarged, enlargement, enlarging, big, bigger, large, larger, dilated, dilatation, dilation, oversized, huge,
    increased, widened, wide, expanded, prominent, swollen, massive, giant, increase
""")
NORMAL = _terms(
    "normal, within normal limits, unremarkable, not enlarged, not large, not big, not increased, not dilated"
)

# Other findings and anatomy: known well enough to say that XFlow does not answer them.
OTHERS = _terms("""
    pneumothorax, pneumothoraces, ptx, pyothorax, fluid level, hydropneumothorax, haemopneumothorax,
    hemopneumothorax, tension pneumothorax, haemothorax, hemothorax, chylothorax, empyema, pneumomediastinum,
    pneumoperitoneum, pneumopericardium, free air, nodule, nodules, pulmonary nodule, lung nodule, mass, masses,
    lung mass, tumor, tumour, cancer, lung cancer, carcinoma, adenocarcinoma, neoplasm, neoplasia, malignancy,
    metastasis, metastases, mets, metastatic disease, lymphoma, lymphangitis, fracture, fractures, rib fracture,
    broken rib, dislocation, scoliosis, kyphosis, spondylosis, osteophyte, tube, endotracheal tube, ett, ngt,
    ng tube, nasogastric tube, chest tube, drain, line, central line, picc, picc line, catheter, pacemaker, icd,
    wire, lead, stent, prosthesis, device, support device, foreign body, hardware, clip, valve, implant, fibrosis,
    lung fibrosis, pulmonary fibrosis, emphysema, subcutaneous emphysema, surgical emphysema, copd, hyperinflation,
    hyperexpansion, air trapping, asthma, bronchiectasis, bronchiectases, bronchitis, bronchiolitis, tracheitis,
    pneumonitis, interstitial lung disease, ild, ipf, lung disease, interstitial disease, interstitial marking,
    interstitial pattern, pleural thickening, pleural plaque, plaque, thickening, pleural disease,
    pleural calcification, pleural mass, pleurisy, pleuritis, mesothelioma, calcification, calcified,
    calcified granuloma, granuloma, granulomas, hernia, hiatal hernia, hiatus hernia, diaphragmatic hernia,
    eventration, elevated hemidiaphragm, elevated diaphragm, elevated left hemidiaphragm,
    elevated right hemidiaphragm, raised hemidiaphragm, raised left hemidiaphragm, raised right hemidiaphragm,
    diaphragm elevation, apical cap, pleural cap, mediastinal widening, widened mediastinum, wide mediastinum,
    enlarged mediastinum, mediastinal enlargement, enlarged cardiomediastinum, cardiomediastinum, cardiomediastinal,
    cardiomediastinal silhouette, mediastinal shift, hilar enlargement, enlarged hilum, enlarged hila,
    lymphadenopathy, adenopathy, hilar adenopathy, lymph node, lymph nodes, embolism, embolus, emboli,
    pulmonary embolism, pulmonary embolus, thrombosis, thrombus, dvt, infarct, infarction, pulmonary hypertension,
    hypertension, aneurysm, dissection, tortuous aorta, atherosclerosis, pericardial effusion, pericarditis,
    tamponade, cardiac tamponade, cardiomyopathy, myocarditis, endocarditis, left ventricular hypertrophy, lvh,
    acromegaly, hepatomegaly, splenomegaly, joint effusion, knee effusion, ascites, middle ear effusion,
    subdural effusion, brain edema, cerebral edema, cerebral oedema, peripheral edema, peripheral oedema,
    pedal edema, pedal oedema, leg edema, ankle edema, ankle oedema, pitting edema, facial edema, laryngeal edema,
    laryngeal oedema, soft tissue edema, soft tissue swelling, swelling, macular edema, angioedema, bone edema,
    bone marrow edema, cavity, cavitation, cavitating lesion, cavitary lesion, cyst, bulla, bullae, bleb, abscess,
    lung abscess, air fluid level, tuberculosis, tb, covid, covid 19, coronavirus, sarcoidosis, sarcoid, silicosis,
    asbestosis, pneumoconiosis, aspergilloma, scar, scarring, contusion, pulmonary contusion, hemorrhage,
    haemorrhage, pulmonary hemorrhage, bleeding, hematoma, haematoma, ards, acute respiratory distress syndrome,
    aspiration, obstruction, bowel obstruction, perforation, stenosis, rib, ribs, spine, vertebra, vertebrae,
    clavicle, scapula, sternum, humerus, bone, bones, aorta, aortic arch, aortic knob, trachea, carina, bronchus,
    bronchi, esophagus, oesophagus, thymus, thyroid, breast, atrium, atrial, ventricle, ventricular,
    diaphragm enlargement, kidney stone, gallstone, gallstones, stroke, appendicitis
""")

# A word that may mean several of the seven, or one of them and something else: the user is asked.
AMBIGUOUS = {
    "pneumo": "pneumonia or pneumothorax",
    "pe": "pleural effusion or pulmonary embolism",
    "chf": "edema, effusion or cardiomegaly, which heart failure may show as",
    "heart failure": "edema, effusion or cardiomegaly, which heart failure may show as",
    "cardiac failure": "edema, effusion or cardiomegaly, which heart failure may show as",
    "congestive heart failure": "edema, effusion or cardiomegaly, which heart failure may show as",
    "congestive cardiac failure": "edema, effusion or cardiomegaly, which heart failure may show as",
    "cardiac decompensation": "edema, effusion or cardiomegaly, which heart failure may show as",
    "fluid overload": "edema, effusion or cardiomegaly, which an overload of fluid may show as",
    "volume overload": "edema, effusion or cardiomegaly, which an overload of fluid may show as",
    "hypervolemia": "edema, effusion or cardiomegaly, which an overload of fluid may show as",
    "congestion": "pulmonary congestion, which is edema, or something else",
    "water": "effusion (around the lung) or edema (in it)",
    "lung water": "effusion (around the lung) or edema (in it)",
    "ll": "the left lung, or a lower lobe",
    ", right ?": "the right lung, or only the question",
}


@dataclass(frozen=True)
class PlaceWord:
    """What a word says of a place: sides, zones, or the lung as such; ``assumed`` is what the note says, if any.

    ``usual_side`` is the side meant where no other is named.
    """

    sides: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    lung: bool = False
    plural: bool = False
    assumed: str = ""
    usual_side: str = ""


NOWHERE = PlaceWord()
_BOTH = ("right", "left")
_APEX, _UPPER, _MID, _BASE = ("apical zone lung",), ("upper zone lung",), ("mid zone lung",), ("lung base",)
_LOBE = "XFlow's zones are thirds of the lung's height, not lobes"

_PLACES: dict[str, PlaceWord] = {
    "left, lt, lft, l, leftward, left sided, left side, left hand side, leftsided": PlaceWord(sides=("left",)),
    "right, rt, rgt, r, rightward, right sided, right side, right hand side, rightsided": PlaceWord(sides=("right",)),
    """bilateral, bilaterally, bilat, bil, both sides, either side, each side, two sided, both lung, both lungs,
    either lung, each lung, two lungs, both hemithoraces,
    both hemithorax, both lung fields, both pleural spaces, both pleural cavities,
    both""": PlaceWord(sides=_BOTH),
    "lung, hemithorax, lung field, lungfield, hemi thorax, hemichest, hemithoracic": PlaceWord(lung=True),
    "lungs, lung fields, hemithoraces, lungfields": PlaceWord(lung=True, plural=True),
    "apical, apex, apices, apical zone, apically, apical region, lung apex": PlaceWord(zones=_APEX),
    "biapical": PlaceWord(_BOTH, _APEX),
    "upper, upper zone, superior, uppermost": PlaceWord(zones=_UPPER),
    "mid, middle, mid zone, midzone, midlung, midfield, midzonal, middle zone": PlaceWord(zones=_MID),
    "lower, lower zone, base, basal, basilar, basally, inferior, basis, lung base, lowermost": PlaceWord(zones=_BASE),
    "bibasilar, bibasal, bi basilar, bi basal, bibasally, bibasalar": PlaceWord(_BOTH, _BASE),
    "all zones, all three zones, every zone, all lung zones": PlaceWord(zones=_UPPER + _MID + _BASE),
    "upper two thirds": PlaceWord(zones=_UPPER + _MID),
    "lower two thirds": PlaceWord(zones=_MID + _BASE),
    "upper half": PlaceWord(zones=_UPPER + _MID, assumed="the zones that an upper half reaches"),
    "lower half": PlaceWord(zones=_MID + _BASE, assumed="the zones that a lower half reaches"),
    "upper lobe": PlaceWord(zones=_UPPER, assumed=_LOBE),
    "lower lobe": PlaceWord(zones=_BASE, assumed=_LOBE),
    "left ll, lt ll, l ll": PlaceWord(("left",), _BASE, assumed=_LOBE),
    "right ll, rt ll, r ll": PlaceWord(("right",), _BASE, assumed=_LOBE),
    "middle lobe, mid lobe": PlaceWord(zones=_MID, assumed=_LOBE, usual_side="right"),
    "lul": PlaceWord(("left",), _UPPER, assumed=_LOBE),
    "lml": PlaceWord(("left",), _MID, assumed=_LOBE),
    "lll": PlaceWord(("left",), _BASE, assumed=_LOBE),
    "rul": PlaceWord(("right",), _UPPER, assumed=_LOBE),
    "rml": PlaceWord(("right",), _MID, assumed=_LOBE),
    "rll": PlaceWord(("right",), _BASE, assumed=_LOBE),
    "luz": PlaceWord(("left",), _UPPER),
    "lmz": PlaceWord(("left",), _MID),
    "llz": PlaceWord(("left",), _BASE),
    "ruz": PlaceWord(("right",), _UPPER),
    "rmz": PlaceWord(("right",), _MID),
    "rlz": PlaceWord(("right",), _BASE),
    "lingula, lingular": PlaceWord(("left",), _MID, assumed="the lingula lies there"),
    """perihilar, hilar, hilum, hila, hili, parahilar, juxtahilar, peri hilar, para hilar, midperihilar""": PlaceWord(
        zones=_MID, assumed="the hilum lies there"
    ),
    "suprahilar, supra hilar": PlaceWord(zones=_UPPER, assumed="it lies above the hilum"),
    "infrahilar, infra hilar": PlaceWord(zones=_MID + _BASE, assumed="it lies below the hilum"),
    "retrocardiac, retro cardiac, behind the heart": PlaceWord(
        zones=_BASE, assumed="the lung behind the heart", usual_side="left"
    ),
    """costophrenic angle, costophrenic sulcus, costophrenic recess, costophrenic, costo phrenic angle, cp angle,
    cp sulcus, cp recess, cpa, costophrenic sulci""": PlaceWord(
        zones=_BASE, assumed="the costophrenic angle lies there"
    ),
    "cardiophrenic angle, cardiophrenic": PlaceWord(zones=_BASE, assumed="the cardiophrenic angle lies there"),
    "hemidiaphragm, diaphragm, supradiaphragmatic, hemi diaphragm": PlaceWord(
        zones=_BASE, assumed="the lung above the diaphragm"
    ),
    "heart border, cardiac border, heart margin": PlaceWord(zones=_MID, assumed="the lung beside the heart border"),
}
PLACES: dict[str, PlaceWord] = {term: place for terms, place in _PLACES.items() for term in _terms(terms)}

# Places that are no region of XFlow: refused, since an answer about the chest would be another answer.
NO_PLACES = _terms("""
    mediastinum, mediastinal, chest wall, paratracheal, paraspinal, paravertebral, subcarinal, pericardium,
    pericardial, paracardiac, abdomen, abdominal, pelvis, pelvic, knee, hip, ankle, wrist, elbow, shoulder, hand,
    foot, leg, legs, arm, arms, limb, extremity, skull, brain, head, neck, throat, face, eye, ear, liver, spleen,
    stomach, bowel, colon, zone 1, zone 2, zone 3, zone 4, zone 5, zone 6, kidney, bladder, pancreas, gallbladder,
    between, uterus, ovary, prostate, skin, tooth, teeth, tongue, nose, sinus, pharynx, larynx, muscle, joint
""")
OTHER_SIDE = _terms("""
    contralateral, ipsilateral, opposite side, opposite lung, other side, other lung, same side, same lung,
    same place, same zone, same region, same location, same area, other one
""")
EXCEPT = _terms("""
    except, except for, excepting, excluding, other than, apart from, aside from, besides, anything but,
    everything but, all but, rather than, instead of, do not segment, dont segment, do not mark, dont mark,
    do not outline, dont outline, do not include, dont include, do not draw, dont draw, do not show, dont show me,
    do not highlight, dont highlight, ignore, skip, exclude from, leave out, outside, outside of, any lung but,
    any zone but, any side but, any place but, either lung but
""")

# Denials. "Rule out" and the like ask, so they are no denial.
DENIES_NEXT = _terms("""
    no, not, without, denies, deny, denying, absence of, lack of, lacks, lacking, free of, free from, clear of,
    negative for, neg for, neither, nor, never, devoid of, isnt, arent, wasnt, werent, doesnt, didnt, dont, hasnt,
    havent, nothing, none, no evidence of, no sign of, no signs of, no further, no more, cannot see, cant see,
    no residual, fails to show, fail to show, rules out, excludes, has no, have no, absence
""")
DENIES_LAST = _terms("""
    free, not seen, not present, not visible, not visualized, not visualised, not evident, not identified,
    not demonstrated, not there, not apparent, not detected, not found, not noted, not shown, cannot be seen,
    no longer seen, no longer present, no longer visible, not appreciated, has been ruled out, was ruled out,
    is ruled out, been excluded, is excluded, was excluded, unlikely, isnt seen, isnt present, isnt there,
    isnt visible, arent seen, arent present, arent there, arent visible, has gone, is gone
""")
DENIES_EITHER = _terms("absent, negative, neg, nil, ruled out, excluded")
NO_DENIAL = _terms("""
    ro, rule out, ruling out, to rule out, cannot rule out, can not rule out, cant rule out, could not rule out,
    not ruled out, cannot be ruled out, can not be ruled out, not been ruled out, exclude, cannot exclude,
    can not exclude, cant exclude, could not exclude, cannot be excluded, can not be excluded, could not be excluded,
    not excluded, not been excluded, present or absent, absent or present, presence or absence of,
    presence or absence, present or not, or not, whether or not, if not, not only, not just, not sure, not certain,
    not clear, not clear whether, unclear whether, no doubt, do not miss, dont miss, do not forget, dont forget,
    do not overlook, dont overlook, why not, dont you see, do not you see, cant you see, doubt, yes or no,
    positive or negative, negative or positive, no change in, no change, no interval change, no interval change in,
    no significant change, no significant interval change, no significant change in, not changed,
    not significantly changed, no increase in, no decrease in, not resolved, not improved, not yet resolved,
    not improving, no improvement in, no improvement, no matter, no problem
""")

# Words that end a denial, and words that say something is there.
TURNS = _terms("""
    but, however, although, though, yet, while, whereas, but there is, but rather, then, otherwise, but only,
    but also
""")
ASSERTS = _terms("""
    segment, segmenting, show, shows, showing, mark, outline, delineate, contour, highlight, find, locate, localize,
    localise, identify, detect, look for, check for, there is, there are, is there, are there, there may be,
    please segment, has, have, demonstrates, contains, reveals, positive for, present, visible, seen, evident,
    presence of, evaluate for, assess for, is seen, theres, positive
""")
HAS = _terms("has, have, shows, show, contains, demonstrates, reveals, showing, is, are")

JOINS = _terms("""
    and, or, as well as, plus, vs, versus, along with, together with, with, w, and or, also, in addition to,
    including, due to, secondary to, because of, caused by, accompanied by, associated with, consistent with,
    concerning for, suspicious for, suggestive of, suggesting, compatible with, representing, followed by, such as,
    like, than
""")
PREPOSITIONS = _terms("""
    in, at, on, of, within, near, over, along, inside, into, throughout, across, around, about, involving, affecting,
    occupying, from, to, through, towards, toward, above, under, below, beneath, behind, beside, next to,
    adjacent to, projecting over, overlying, located, located in, localized to, confined to, limited to,
    restricted to, by, for, obscuring, abutting
""")

# Who looks: "the image's left" is the patient's right. So is the side that follows a word of ``VIEWER``.
IMAGE = _terms("""
    image, picture, film, screen, radiograph, xray, x ray, cxr, photo, scan, monitor, display, chest x ray,
    chest xray, chest film, chest radiograph, photograph, radiogram, roentgenogram
""")
VIEWER = _terms(
    "viewer, observer, reader, my, our, your, image, picture, film, screen, radiograph, photo, monitor, display, xray"
)
VIEWPOINT = _terms("""
    viewers perspective, viewers point of view, viewers side, as viewed, as displayed, as seen on screen,
    as seen on the screen, as i look at it, as you look at it, as we look at it, as i see it, facing me,
    from my perspective, from my point of view, viewer perspective, viewing perspective, observers perspective,
    readers perspective, from where i sit
""")
PATIENT = _terms(
    "patient, patients, anatomic, anatomical, anatomically, pt, pts, his, her, their, true, subject, subjects"
)

# What follows tells of the patient, up to a comma.
HISTORY = _terms("history, hx, h o, s p, status post, known case, pmh, background")

# Whole phrases put in other words before anything else is read.
REWRITTEN = {"neither lung": "not in either lung", "neither side": "not on either side"}

# What narrows a finding or asks for more than a mask: not used, and said so.
UNUSED = _terms("""
    predict its type, predict the type, predict type, predict their type, predict their types,
    predict the lesion type, lesion, lung lesion, classify, classify it, its type, type, types, kind, predict,
    describe, explain, measure, measurement, quantify, count, how many, how much, how large, how big, size, volume,
    extent, severity, grade, degree, cause, etiology, compare, comparison, prior, previous, report, diagnose,
    diagnosis, stage, percentage, width, thickness, loculated, layering, subpulmonic, free flowing, parapneumonic,
    malignant, benign, encysted, encapsulated, tension, transudative, exudative, hemorrhagic, haemorrhagic, small,
    tiny, trace, minimal, minor, mild, mildly, moderate, moderately, severe, severely, marked, markedly, gross,
    extensive, subtle, slight, slightly, significant, considerable, substantial, faint, dense, minuscule, focal,
    multifocal, diffuse, patchy, confluent, scattered, linear, platelike, plate like, plate, discoid, bandlike,
    band like, band, subsegmental, segmental, lobar, round, rounded, nodular, mass like, masslike, reticular,
    reticulonodular, reticulation, interstitial, alveolar, airspace, air space, streaky, streak, fluffy, hazy,
    wedge shaped, ill defined, well defined, irregular, dependent, compressive, obstructive, passive, adhesive,
    relaxation, cicatricial, bronchial, peribronchial, necrotizing, cavitary, cavitating, cardiogenic,
    noncardiogenic, non cardiogenic, flash, frank, viral, bacterial, atypical, fungal, infectious, infective,
    inflammatory, organizing, postobstructive, pneumonic, nosocomial, hypostatic, congestive, acute, chronic,
    subacute, new, old, recent, stable, unchanged, worsening, worsened, worse, improving, improved, resolving,
    resolved, increasing, increased, decreasing, decreased, progressive, persistent, recurrent, known, interval,
    residual, greater, more, less, larger, smaller, large, big, huge, massive, giant, prominent, enlarging, largest,
    biggest, smallest, main, peripheral, central, lateral, medial, anterior, posterior, ventral, dorsal, subpleural,
    superior segment, apicoposterior, fissure, fissural, interlobar, minor fissure, major fissure,
    horizontal fissure, oblique fissure, subsegment, proximal, distal, periphery, white, dark, bright, dominant,
    predominant, predominantly, mainly, mostly, lateral view
""")
# What a note adds to a reading that could be another one.
REMARKS = {
    "fluid": ", the fluid around the lung; ask for edema if fluid in the lung itself is meant",
    "collapsed": "; a lung that air has collapsed (pneumothorax) is not answered",
    "lung collapse": "; a lung that air has collapsed (pneumothorax) is not answered",
}

# Words that carry no meaning here.
FILLERS = _terms("""
    a, an, the, teh, this, that, these, those, it, its, any, some, all, every, each, either, such, one, ones, there,
    here, which, what, where, when, who, how, why, if, whether, is, are, was, were, be, been, being, am, do, does,
    did, done, has, have, had, having, can, could, would, should, may, might, must, will, shall, i, you, he, she, we,
    they, me, us, him, them, my, your, our, his, her, their, yours, mine, as, so, too, very, quite, rather, just,
    really, maybe, perhaps, please, pls, plz, kindly, thanks, thank, thx, hi, hello, hey, dear, ok, okay, well, yes,
    yeah, also, again, both, same, other, another, else, up, out, off, down, s, t, segment, segmentation,
    segmentations, segmenting, segments, segmented, mask, masks, show, shows, showing, shown, find, finding,
    findings, found, locate, located, location, localize, localise, localization, mark, marking, outline, outlines,
    outlining, delineate, delineation, contour, contours, highlight, highlighting, highlighted, draw, drawing,
    trace out, identify, identified, detect, detection, detected, look, looks, looking, check, checking, evaluate,
    evaluation, evaluating, assess, assessment, assessing, examine, examination, exam, see, seen, sees, seeing,
    visible, visualize, visualise, visualized, view, views, frontal, pa, ap, portable, supine, erect, upright, tell,
    say, give, get, make, create, produce, generate, return, provide, display, displaying, point, points, pointing,
    want, need, like, know, think, believe, wonder, wondering, ask, asking, question, query, answer, help, let, try,
    use, using, confirm, verify, consider, considering, suspect, suspected, suspicion, suspicious, possible,
    possibly, probable, probably, likely, potential, potentially, questionable, equivocal, concern, concerns,
    concerned, concerning, suggest, suggests, suggestion, suggestive, suggesting, consistent, compatible, represent,
    representing, appear, appears, appearance, appearing, seem, seems, evidence, evident, sign, signs, signal,
    feature, features, indication, indicate, indicates, indicating, presence, present, presents, presenting, exist,
    exists, existence, contain, contains, demonstrate, demonstrates, reveal, reveals, noted, note, observed,
    definite, definitely, clear, clearly, obvious, overt, apparent, appreciable, change, changes, process, area,
    areas, region, regions, zone, zones, zonal, site, sites, spot, spots, part, parts, portion, portions, third,
    thirds, aspect, level, field, fields, lobe, lobes, lobar, side, sides, sided, space, spaces, cavity, cavities,
    pixel, pixels, border, borders, boundary, extending, extends, extend, spreading, occupying, chest, thorax,
    thoracic, whole, entire, entirely, complete, completely, total, anywhere, everywhere, somewhere, elsewhere,
    image, images, picture, film, films, screen, scan, radiograph, radiographs, xray, x ray, xrays, cxr, photo,
    study, studies, monitor, patient, patients, pt, pts, man, woman, male, female, gentleman, lady, person, subject,
    year, years, yo, yr, yrs, old, aged, age, month, months, day, days, today, yesterday, adult, child, baby, infant,
    neonate, hx, history, known, pmh, background, status post, known case, elevated, raised, c, d, m, f, b, n, dr,
    doctor, colleague, team, radiologist, admitted, admission, presented, complains, complaining, complaint,
    clinical, clinically, followup, follow, following, post, pre, status, op, surgery, postoperative, postop,
    post op, preoperative, preop, fever, febrile, cough, coughing, sputum, dyspnea, dyspnoea, sob, shortness, breath,
    breathlessness, breathing, hypoxia, hypoxic, hypoxemia, desaturation, pain, pleuritic, wheeze, crackles, rales,
    smoker, smoking, sepsis, septic, trauma, fall, icu, er, ed, ward, inpatient, leukocytosis, wbc, crp, tachypnea,
    pulmonary, pulm, parenchyma, parenchymal, respiratory, anatomic, anatomical, anatomically, cardiopulmonary,
    right now, right away, all right, alright, is that right ?, am i right ?, right here, thats right, theres, thats,
    whats, wheres, hows, id, ill, im, ive, lets, youre, half, halves, only, still, now, corner, edge, hand, ct,
    chills, first, second, next, time, quickly, quick, carefully, careful, exact, exactly, precise, precisely,
    accurately, automatically, automatic, model, xflow, ai, system, based, because, since, after, before, during,
    between, among, against, per, via, not applicable, e, g, eg, ie, etc, thing, things, something, anything,
    everything, nothing else, amount, amounts, abnormal, abnormality, abnormalities, disease, problem, problems,
    issue, issues, condition, predicted, lateralized, multiple, several, many, few, single, different, various, two,
    three, four, right there, noticeable, question of, eval, dx, ddx, s p, h o, c o, y o, worried, worry, worrying,
    sure, unsure, uncertain, request, requested, requesting, order, requires, required, require, do we have,
    go ahead, care, interested, interest
""")
# Fit only with a finding: "pleural" says nothing more in front of an effusion.
PLEURAL = _terms(
    "pleural, pleural space, pleural cavity, pleural sac, pleura, pleurae, intrapleural, parietal, visceral"
)

# English words that look like one of ours and are not; never corrected.
FALSE_FRIENDS = _terms("""
    fusion, infusion, diffusion, perfusion, confusion, profusion, suffusion, transfusion, effusive, effuse, diffuse,
    diffusing, refuse, refusing, delusion, emulsion, conclusion, occlusion, exclusion, inclusion, collusion,
    illusion, allusion, elusion, elision, explosion, erosion, invasion, effluent, emission, omission, revision,
    version, collision, decision, enema, eczema, edam, edge, edges, edit, edited, editor, media, schema, enemy,
    oedipus, consolation, consultation, constellation, consolidate, consolidates, consolidating, condition,
    conditions, conversation, conservation, conciliation, constipation, solidification, parties, practices,
    societies, parity, acuity, consideration, considerations, hail, capacity, capacities, opacify, rapacity, obesity,
    velocity, tenacity, audacity, paucity, specificity, city, pacific, ammonia, pneumatic, pneumococcal,
    pneumococcus, insomnia, anemia, leukemia, hypoxemia, ischemia, ischaemia, uremia, injection, inflection,
    inspection, infraction, insertion, inspiration, expiration, respiration, perspiration, intention, collage,
    college, elapse, relapse, prolapse, collapsible, intensity, destiny, identity, filtrate, filtration, infiltrator,
    bright, fright, height, weight, light, night, might, eight, tight, sight, fight, rights, righteous, cleft, lefty,
    felt, lift, theft, hear, heard, heat, hearty, hearts, earth, hurt, upper case, supper, super, slower, flower,
    power, tower, amid, midst, middling, based, basic, basin, basket, cases, phases, biases, apply, typical, optical,
    topical, ethical, tropical, basically, interior, superiority, supervisor, shadowy, selling, citation, lunch,
    lunge, long, lobby, globe, probe, robe, lope, glove, love, alone, zoned, ozone, gone, done, tone, literal,
    collateral, unilateral, equilateral, lateral, inner, outer, infer, inferior to
""")
